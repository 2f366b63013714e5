"""A small Kubernetes API server for the embedded local cluster and for tests.

It is frozen (decision 4): behaviour that a test can check against a real API server is not added here.
"""
