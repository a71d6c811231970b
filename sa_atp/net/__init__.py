"""Sockets, clocks and threads: they drive the connections of `protocol` and the ports of the embedded switch.

`communicator` is what programs use; `session` and `helping` are its conversation with a connection.
"""
