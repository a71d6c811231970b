"""Plan files: their keys, limits and combinations, sweeps, and traces of stragglers."""
