"""The network as flows: fair shares of links instead of packets, for hundreds of workers in virtual time.

network       links and flows, with rates that are computed anew when a flow begins or ends; fair_rates: max-min fairness
fabric        a star or a tree of two levels: the links between workers and the parameter server, and messages
queues        transfers that share links first come first served: for parameters on a server
aggregation   the transfer of one sum: contributions up, results down at the pace of the slowest contribution, windows,
              leaves (sum_paths: its links; stream: its contributions; sum_progress: how far all are)
sums          the arithmetic of a sum, bit for bit that of packets
job           a job's sums; flow_worker: the workers on which steps run; help_groups: the ledger's answers
workloads     one model for all workers of a process, or gradients of a size without values
ring          a ring all-reduce, for comparison
"""
