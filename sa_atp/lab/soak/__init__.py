"""A soak test: random simulated clusters ("worlds") with all faults at once, in which every promise of the protocol holds.

A world is described by a `scene.Scene`, drawn from a seed (`draw`), built and run (`world`), checked (`invariants`), and
reduced to a smaller one that still fails (`shrink`). The same seed gives the same world, packet by packet.
"""
