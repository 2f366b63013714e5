"""The plan of a cluster: addresses, arguments, settings and objects, all as functions of it (pure)."""
