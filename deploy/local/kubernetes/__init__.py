"""A real Kubernetes on this machine: what it is built of, what it is planned to be, and what is done to the machine."""
