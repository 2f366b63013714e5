"""Nodes that a pod fits, and how much each is wanted for it. Pure; what nodes hold is the ledger's."""
