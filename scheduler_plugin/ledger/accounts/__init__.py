"""Accounts of pods, VMs and nodes: claims, permits, sums and pressure."""
