"""A server that holds parameters, and workers that pull them and push updates.

rules       what both sides decide: pure, messages and the time go in, messages come out
policies    the policies that are made of them, one file each
service, client     in processes, over gRPC (frames)
simulated, worker, virtual_time     in virtual time
"""
