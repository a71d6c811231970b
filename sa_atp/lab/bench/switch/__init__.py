"""Benchmark of the P4 program: pipeline alone, through interfaces, and what memory costs."""
