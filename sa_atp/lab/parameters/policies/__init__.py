"""The policies with parameters on a server, one file each."""
