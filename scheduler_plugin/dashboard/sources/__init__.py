"""Data sources of the page: scheduler, groups program, agents, and the cluster for its history."""
