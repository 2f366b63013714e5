"""Verdicts and scores of nodes for pods. Pure; the ledger holds the state."""
