"""Judges of facts: one pure function for each line of ``autoscale check``."""
