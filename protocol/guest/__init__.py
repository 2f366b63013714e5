"""Protocols of the programs in a guest."""
