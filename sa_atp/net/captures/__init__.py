"""Captures of packets: pcap files, and SA-ATP packets as text."""
