"""A local cluster: one process that starts all others, and removes everything it made when it ends."""
