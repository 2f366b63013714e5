"""The plan of a cluster, and the command lines, settings and objects derived from it (pure)."""
