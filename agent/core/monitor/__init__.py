"""What the monitor in a guest says, and what follows from it (B.8)."""
