"""Controllers of groups: caches, reconcile loops and writes."""
