"""Training with parameters on a server: workers pull them and push updates. A clock is a worker's step.

rules       the decisions of both sides, pure: messages and the time go in, messages come out
policies    the policies built from these rules, one file each
service, client     in processes, over gRPC (frames)
simulated, worker, virtual_time     in virtual time
"""
