"""What a cluster is to be: addresses, arguments, settings and objects, all as functions of a plan (pure)."""
