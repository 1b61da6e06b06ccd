"""Tiny models, a server harness, the demonstration and the benchmarks. The package imports none of it."""
