"""Many small worlds in virtual time, drawn from everything at once, in which nothing that the protocol promises may fail.

A world is a `scene.Scene`, drawn from a seed (`draw`), built and run (`world`), watched (`invariants`), and made smaller
where something failed (`shrink`). The same seed is the same world, packet by packet.
"""
