"""``neonvm-network``: the VMs' flat network across the nodes of a real cluster (VXLAN); runs on each node."""
