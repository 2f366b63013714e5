"""Simulated guests, which play a load behind the same port as real ones."""
