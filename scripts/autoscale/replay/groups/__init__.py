"""Recordings played as the load of a whole group: policies that choose replicas and size, side by side."""
