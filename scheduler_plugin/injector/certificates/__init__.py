"""A small certificate authority: when what is due, how it is made, and where it is kept (B.4)."""
