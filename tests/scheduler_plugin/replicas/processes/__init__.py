"""Replicas as real processes, which are killed, stopped, told to end and cut off from the API."""
