"""kube-scheduler's placement constraints, so that VMs move only to nodes that accept their pods (S4.8). Pure."""
