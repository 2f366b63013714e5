"""Networks for pods: nodes as network namespaces, as ports of a hub, or as loopback addresses."""
