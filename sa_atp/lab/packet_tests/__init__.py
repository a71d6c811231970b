"""Packet tests on foreign switches: BMv2, and the vendor's model of Tofinos."""
