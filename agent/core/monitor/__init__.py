"""The conversation with the monitor in a guest, and its consequences (B.8)."""
