"""Decoding and encoding of Tortoises, their status, and the global configuration."""
