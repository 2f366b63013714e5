"""A history in a file: what is recorded can be read back, despite failures of the disk."""
