"""Authentication of agents: bearer tokens, and the pods for which each may request permits (B.4)."""
