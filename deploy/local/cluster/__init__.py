"""A whole cluster on this machine as one process that owns all others, and leaves no trace."""
