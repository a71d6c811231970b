"""Reports of processes on themselves, for whoever looks: `sa-atp watch`, and Prometheus. (docs/watching.md)

    states    the records: a parameter server with its jobs, a switch, a rank's connection
    door      how a process tells: a Unix socket of its user, and a thread that waits there
    looking   reads all doors of this machine, and puts together what belongs together
    metrics   the same as metrics for Prometheus

A process does nothing for this as long as nobody looks: its thread sleeps, and the loop that knows the state is asked
between two turns.
"""
