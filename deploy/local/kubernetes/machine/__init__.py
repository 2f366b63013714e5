"""What is done to this machine for a cluster, and how all of it is undone."""
