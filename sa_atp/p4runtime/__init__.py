"""P4Runtime as a switch and its controller both say it: what may be said, and its messages.

    entities     table entries, groups, counters, registers and updates, by name, as frozen dataclasses
    schema       a program's objects with their ids and widths, from its P4Info
    codec        messages <──> entities, by a schema
    bytestrings  numbers in messages
    errors       why a request was refused

Only `codec` knows protobuf messages, so that a simulation can use the rest without. Section numbers are those of the
P4Runtime specification 1.3.0.
"""
