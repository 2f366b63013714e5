"""A complete cluster on one machine: API server, scheduler, NeonVM controllers, kubelets and guests."""
