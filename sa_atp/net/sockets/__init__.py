"""Sockets and interfaces: batches of datagrams, super-packets, ports of a switch, namespaces, MTUs."""
