"""Accounts of each pod, VM and node: claims, permits, sums and pressure."""
