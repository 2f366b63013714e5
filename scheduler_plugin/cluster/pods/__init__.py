"""Pods: their shapes in the Kubernetes API, their requests, and the facts about them for the ledger."""
