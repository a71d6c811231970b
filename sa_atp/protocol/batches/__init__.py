"""Batch orchestration (BOA): how many samples of a global batch each worker computes.

Only the idea is published, in an abstract: batch sizes from a min-max integer program, so that workers of different
speed finish together. The speed model, both solvers and the hysteresis are this project's (docs/deviations.md). The
package is pure, and computes in Python's floats in a fixed order, so that ranks on different machines with the same
measurements decide alike.
"""
