"""A real Kubernetes on this machine: its programs, its plan, and its resources on the machine."""
