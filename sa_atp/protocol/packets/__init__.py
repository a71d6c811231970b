"""Packets as bytes: the header, datagrams in batches, and frames around them. Pure."""
