"""``neonvm-network``: the flat network of VMs across the nodes of a real cluster; one program on each node."""
