"""Looks at the cluster: every answer, and every refusal to answer, becomes a fact."""
