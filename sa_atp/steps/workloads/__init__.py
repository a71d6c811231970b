"""Workloads: models and data, gradients of micro-batches, and their layout in sums."""
