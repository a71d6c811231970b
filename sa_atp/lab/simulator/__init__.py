"""A packet-level simulator in virtual time: the real connections and switch program, and simulated links with faults.

A run is a pure function of its scenario and its seed.
"""
