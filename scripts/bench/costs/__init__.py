"""Benchmark of the costs of a large fleet."""
