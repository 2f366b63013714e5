"""Costs of databases, from a cluster's recorded history."""
