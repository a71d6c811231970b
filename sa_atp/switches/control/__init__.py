"""The control plane: writes a program, jobs and routes to a switch, and reads its counters.

    client   a P4Runtime client, for the embedded target, BMv2 or any other server; `connection` is its gRPC
    writer   the calls that the other modules need, over a client or on a pipeline in this process
    jobs     installs, removes and reads aggregation jobs. job_entries makes the table entries of a job; job_tables
             installs many jobs at once; job_reading recognises a job in table entries
    events   the switch's counters of each job
    routes   forwarding of ordinary traffic
    fabric   the switches of a network, and keeping them up

They write and read the entities of `switches.p4runtime`. Names of tables, actions and counters are those of the P4 program
(p4src/core).
"""
