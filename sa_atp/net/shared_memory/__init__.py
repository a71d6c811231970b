"""Shared memory between the embedded switch and ranks of the same user on its machine, in place of loopback's packets."""
