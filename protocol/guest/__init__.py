"""Protocols of programs in a guest."""
