"""A demonstration of sleep: an idle VM gives everything back, and its sessions wake it (B.18)."""
