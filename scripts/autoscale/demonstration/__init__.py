"""The demonstration: a database scales with its load on the screen, and the outcome is checked."""
