"""Runs of plans: processes, records, folders, and points of sweeps."""
