"""Validation of objects against the schema of a custom resource: types, bounds, patterns and CEL rules. Pure."""
