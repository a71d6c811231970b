"""The laboratory: simulators, policies, plans, backends, benchmarks, reports, and a soak test of the protocol."""
