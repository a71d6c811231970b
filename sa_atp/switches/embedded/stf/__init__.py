"""Packet tests in p4c's STF format, run against the embedded target or BMv2.

    text ──> grammar   statements, each with its line
         ──> names     tables, actions, keys and widths of the program that a test means
         ──> runner    carries statements out on a target, collects what comes out
         ──> compare   expected beside received, up to the first differing byte

The format is p4c's (tools/stf and backends/bmv2/bmv2stf.py there): tests of p4c run here, and tests from here run there,
except where a test uses one of the extensions that `grammar` lists.
"""
