"""Conversion of values to the integers of packets and back: scaling, quantisation, layout of fragments. Pure."""
