"""The plan of a cluster, and the command lines, settings and objects that follow from it (pure)."""
