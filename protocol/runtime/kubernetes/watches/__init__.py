"""Caches of the objects of one kind, synchronized with the API by list and watch."""
