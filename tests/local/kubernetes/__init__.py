"""A real Kubernetes on this machine: what is decided about it, without one."""
