"""The chart, and what is rendered from it."""
