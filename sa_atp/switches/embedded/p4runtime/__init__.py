"""The embedded target as a P4Runtime server.

    server       gRPC: threads, streams, status details
      service      the RPCs as functions of messages: pipeline, arbitration, packet-in and packet-out
        arbitration  which client may write
        packets      controller headers of packet-in and packet-out
        forwarding   entities <──> tables, groups, counters and registers of a pipeline
          keys             match keys of both
          program_schema   the schema of a compiled program, and whether it agrees with a P4Info

Entities, schemas and messages are those of `sa_atp.switches.p4runtime`. Only `server` knows gRPC; `forwarding`, `keys` and
`program_schema` do not even know protobuf messages, so that a simulation can use them without either. Section numbers
are those of the P4Runtime specification 1.3.0.
"""
