"""Experiments: a plan is prepared, run and saved. The command line and Python (`sa_atp.experiment`) both do it here."""
