"""Sockets, clocks and threads: they drive the connections of `protocol` and the ports of the embedded switch.

Programs use `communicator`; `session` and `helping` connect it with a connection of `protocol`.
"""
