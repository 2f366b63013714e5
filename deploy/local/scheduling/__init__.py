"""A scheduling loop that calls its extender exactly as kube-scheduler does."""
