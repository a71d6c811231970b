"""The embedded target as a P4Runtime server.

    server       gRPC: threads, streams, status details
      service      the RPCs as functions of messages: pipeline, arbitration, packet-in and packet-out
        arbitration  which client may write
        packets      controller headers of packet-in and packet-out
        codec        messages <──> entities, by a schema
        forwarding   entities <──> tables, groups, counters and registers of a pipeline
          keys         match keys of both
          entities     what the control plane says, by name
          schema       the program's objects, from P4Info or from the compiled program

Only `server` knows gRPC; `entities`, `schema`, `forwarding` and `bytestrings` do not even know protobuf messages, so
that a simulation can use them without either. Section numbers are those of the P4Runtime specification 1.3.0.
"""
