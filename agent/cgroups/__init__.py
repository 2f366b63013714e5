"""Control groups of pods: where they are, and what the kernel counts in them (B.7)."""
