"""A small Kubernetes API server: what the local cluster stores its objects in, and tests speak to.

It is frozen (decision 4): behavior that a test can check on a real API server is not added here.
"""
