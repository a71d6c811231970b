"""Packets as bytes: the header, and datagrams in batches. Pure."""
