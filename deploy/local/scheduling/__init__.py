"""A scheduling loop that treats its extender exactly as kube-scheduler does."""
