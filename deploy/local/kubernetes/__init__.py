"""A real Kubernetes on this machine: programs, plan, and machine resources."""
