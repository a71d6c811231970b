"""The backends that run a plan: local processes, Mininet, and simulators of packets or flows in virtual time."""
