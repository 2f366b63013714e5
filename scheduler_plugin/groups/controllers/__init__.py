"""The I/O side of groups: the caches, the loops that reconcile each group, and the writes."""
