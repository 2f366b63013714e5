"""The demonstration as pictures."""
