"""Pods: API shapes, requests, and facts for the ledger."""
