"""Tiny models, a server harness, the demonstration and the benchmarks. Nothing here is imported by the package."""
