"""Which VMs a group should have, which of them serve reads, and in which order they leave (pure)."""
