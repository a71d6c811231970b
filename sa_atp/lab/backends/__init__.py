"""Where a plan runs: processes on this machine, Mininet, packets or flows in virtual time."""
