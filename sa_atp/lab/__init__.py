"""The laboratory: simulators, policies, plans, backends, benchmarks, reports, and worlds that try to break the protocol."""
