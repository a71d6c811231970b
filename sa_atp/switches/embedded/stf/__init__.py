"""Packet tests in p4c's STF format, run against the embedded target or BMv2.

    text ──> grammar   parses statements, each with its line
         ──> names     finds the tables, actions, keys and widths that a test names
         ──> runner    carries out statements on a target, and collects packets that leave
         ──> compare   compares expected and received packets, up to the first differing byte

The format is p4c's (tools/stf and backends/bmv2/bmv2stf.py there): tests of p4c run here, and tests from here run there,
except where a test uses one of the extensions that `grammar` lists.
"""
