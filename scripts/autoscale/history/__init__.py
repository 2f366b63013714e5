"""Recording of a cluster's history, and its location."""
