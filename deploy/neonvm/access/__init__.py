"""Mutual authentication between runner pods and their callers, and authorization of requests (decision 34)."""
