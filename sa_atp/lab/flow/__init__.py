"""The network as flows: fair shares of links instead of packets, for hundreds of workers in virtual time.

network       links and flows: who gets how much of which link, worked out anew when a flow begins or ends; fair_rates: how
fabric        a star or a tree of two levels: the links between workers and the parameter server, and messages
queues        transfers of one host's messages to another, first come first served: for parameters that are on a server
aggregation   one sum on its way: contributions up, results down as the slowest contribution gets on, windows, leaves
sums          the arithmetic of a sum, bit for bit that of packets
job, worker   a job's sums and the workers on which steps run; help_groups: the ledger's answers
workloads     one model for all workers of a process, or gradients that have sizes only
ring          a ring all-reduce, to compare with
"""
