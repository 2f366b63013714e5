"""A scheduling loop that calls its extender exactly like kube-scheduler."""
