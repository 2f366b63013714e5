"""Servers of our programs: bounded listeners, small HTTP servers, and an end without waiting."""
