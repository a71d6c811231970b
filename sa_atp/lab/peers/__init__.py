"""Other aggregation protocols on the same kind of switch: a P4 program of their own, and the transport of their workers.

`lab.simulator.peer_world` runs one in virtual time, `lab.backends.peer_sockets` over sockets.
"""
