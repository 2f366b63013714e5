"""Pods: their shapes in the Kubernetes API, what they come to, and the facts that the ledger has of them."""
