"""Benchmarks (docs/benches.md)."""
