"""Validation of objects against schemas: types, bounds, patterns and CEL rules. Pure."""
