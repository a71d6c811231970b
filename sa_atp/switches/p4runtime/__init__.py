"""P4Runtime for controllers and switches: entities, messages and schemas.

    entities     table entries, groups, counters, registers and updates, by name, as frozen dataclasses
    schema       a program's objects with their ids and widths, from its P4Info
    codec        messages <──> entities, by a schema
    messages     the message classes, for any version of protobuf
    calls        client stub and server registration of the gRPC service
    bytestrings  numbers in messages
    errors       refusals of requests

Only `codec`, `messages` and `calls` need protobuf, so that simulation and training work without it.
Section numbers are those of the P4Runtime specification 1.3.0.
"""
