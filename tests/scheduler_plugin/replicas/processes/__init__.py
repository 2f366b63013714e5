"""Replicas as real processes, which are killed, stopped, terminated and cut off from the API server."""
