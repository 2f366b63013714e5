"""Servers of our programs: bounded listeners, small HTTP servers, and prompt shutdown."""
