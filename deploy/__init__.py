"""Ways to run the system: manifests for a cluster, and the whole system on one machine."""
