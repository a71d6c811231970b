"""P4Runtime as a switch and its controller both say it: what may be said, and its messages.

    entities     table entries, groups, counters, registers and updates, by name, as frozen dataclasses
    schema       a program's objects with their ids and widths, from its P4Info
    codec        messages <──> entities, by a schema
    messages     the messages, as classes of the protobuf that is installed
    calls        the service's calls, by gRPC
    bytestrings  numbers in messages
    errors       why a request was refused

Only `codec`, `messages` and `calls` know protobuf, so that a simulation, and whoever trains, can use the rest without.
Section numbers are those of the P4Runtime specification 1.3.0.
"""
