"""A simulated network in virtual time: the real connections, the real switch program, links that misbehave on demand.

A run is a pure function of its scenario and its seed.
"""
