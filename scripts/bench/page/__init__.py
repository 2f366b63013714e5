"""Benchmark of the live page: its cost, and the delay until it shows a permit."""
