"""Membership of VM groups: which VMs exist, which serve reads, and in which order they leave (pure)."""
