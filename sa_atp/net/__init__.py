"""The only package with sockets and a clock: it drives the connections of `transport` and the ports of `softswitch`."""
