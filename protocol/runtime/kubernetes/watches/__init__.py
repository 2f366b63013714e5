"""Caches of the objects of one kind, synchronized with the API server by list and watch."""
