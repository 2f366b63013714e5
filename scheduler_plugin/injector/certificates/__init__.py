"""A small certificate authority: issuing, rotation, storage and distribution (B.4)."""
