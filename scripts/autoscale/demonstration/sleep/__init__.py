"""A demonstration of sleep: an idle VM frees its resources, and its sessions wake it (B.18)."""
