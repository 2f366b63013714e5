"""Authentication of agents: bearer tokens, and the pods that each may speak for (B.4)."""
