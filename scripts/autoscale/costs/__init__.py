"""Costs of VMs, from a cluster's record."""
