"""Costs of a choice of node: prices, fitness and node scores, for placing, moving, emptying and adding nodes (S2)."""
