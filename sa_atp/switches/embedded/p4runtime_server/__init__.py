"""The embedded target as a P4Runtime server.

    server       gRPC: threads, streams, status details
      active_rpcs  the limit of concurrent RPCs
      service      the RPCs as functions of messages: pipeline, arbitration, packet-in and packet-out
        arbitration  which client may write
        packets      controller headers of packet-in and packet-out
        forwarding   writes and reads entities: tables, groups, counters and registers of a pipeline
          keys             match keys of entities <──> match keys of tables
          program_schema   the schema of a compiled program, and its differences from a P4Info

Entities, schemas and messages are those of `sa_atp.switches.p4runtime`. Only `server` uses gRPC; `forwarding`, `keys` and
`program_schema` use no protobuf messages either, so that a simulation needs neither package. Section numbers are those of
the P4Runtime specification 1.3.0.
"""
