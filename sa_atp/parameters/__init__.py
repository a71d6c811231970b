"""A server that holds parameters, and workers that pull them and push updates: what both sides decide, without I/O.

Pure: messages and the time go in, messages come out. The same objects run in real processes and in virtual time.
"""
