"""Rules for resizing postgres pods in place (B.7)."""
