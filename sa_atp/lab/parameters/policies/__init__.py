"""The policies whose parameters are on a server, one file each."""
