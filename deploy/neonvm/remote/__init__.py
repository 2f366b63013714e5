"""Guests in runner pods of a real cluster, controlled through their runners' APIs."""
