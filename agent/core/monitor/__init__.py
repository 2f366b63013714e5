"""The protocol with the guest's monitor, and its influence on the size (B.8)."""
