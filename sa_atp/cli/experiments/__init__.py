"""Commands about experiments: plans, runs, their reports, benchmarks."""
