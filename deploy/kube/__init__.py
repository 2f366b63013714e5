"""Kubernetes API client, informers and port forwarding for the VM controllers and the command line."""
