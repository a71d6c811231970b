"""Benchmark of the P4 program: the pipeline alone, through interfaces, and on several cores."""
