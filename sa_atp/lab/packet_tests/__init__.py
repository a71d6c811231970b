"""Packet tests on switches that are not ours: BMv2, and the vendor's model of Tofinos."""
