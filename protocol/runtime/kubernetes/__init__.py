"""Shared Kubernetes components of all programs: clients, informers, leader election, the work queue."""
