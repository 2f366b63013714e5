"""Networks of the local cluster: nodes as network namespaces, as ports of a hub, or as loopback addresses alone."""
