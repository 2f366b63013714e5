"""Data sources of the page: scheduler, ``autoscale-groups``, agents, and the cluster's objects for the history."""
