"""Changes to this machine for a cluster, and how all of them are undone."""
