"""Releases: what is written, what is said of it, and that it can be made again."""
