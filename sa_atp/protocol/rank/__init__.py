"""A rank's side of a job: `worker` is the connection, `server_link` what it says to the parameter server."""
