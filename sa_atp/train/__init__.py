"""Training: workloads, emulated devices, and the step in which leaders help stragglers."""
