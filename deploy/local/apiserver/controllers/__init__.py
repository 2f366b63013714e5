"""Garbage collection: dependents of deleted owners, contents of namespaces, instances of deleted CRDs."""
