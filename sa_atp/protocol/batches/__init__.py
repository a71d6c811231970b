"""How many samples of a global batch each worker computes: speeds measured online, and a min-max integer program.

Batch orchestration (BOA) is known by its abstract's idea alone: batch sizes from a min-max integer program, so that
workers of different speed are done at one time. The speed model, both solvers and the hysteresis are this project's
(docs/deviations.md). The package is pure, and computes in Python's floats in a fixed order, so that ranks of different
machines that know the same measurements decide the same.
"""
