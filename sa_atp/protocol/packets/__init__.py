"""Packets as bytes: header, control messages, batches of datagrams, and Ethernet frames around them. Pure."""
