"""The control plane: what fills a switch with a program, jobs and routes, and reads its counters.

    client   P4Runtime, to the embedded target, BMv2 or anything else that speaks it; `connection` is its gRPC
    writer   the few calls that the rest needs, so that it works over a client and on a pipeline in this process
    jobs     aggregation jobs: installed, removed, read back. job_entries says what the tables of the P4 program hold for
             each; job_tables installs many at once; job_reading recognises a job in such entries
    events   what the switch counts for each job
    routes   where ordinary traffic goes

What is written and read are the entities of `switches.p4runtime`. Names of tables, actions and counters are those of the
P4 program (p4src/core).
"""
