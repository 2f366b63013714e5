"""Implementations of the agent's ports: guest metrics and monitor, scheduler, VM object, tokens."""
