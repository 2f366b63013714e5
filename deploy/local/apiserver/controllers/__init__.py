"""Consequences of deletions: the collection of dependents, namespaces and instances of a kind."""
