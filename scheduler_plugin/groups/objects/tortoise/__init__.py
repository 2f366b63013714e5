"""Tortoises, their status, the HPAs that they manage, and the global configuration, as JSON and YAML have them."""
