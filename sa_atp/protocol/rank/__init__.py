"""A rank's side of a job: `worker` is the connection, `collectives` what a program does with it, `server_link` what it says
to the parameter server.
"""
