"""A group of real VMs: minutes of guests that boot, copy a database and follow it."""
