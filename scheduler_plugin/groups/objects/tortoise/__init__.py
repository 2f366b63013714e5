"""Tortoises, their status and HPAs, and the global configuration, in JSON and YAML."""
