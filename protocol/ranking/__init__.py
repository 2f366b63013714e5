"""What a choice of node costs: prices, fitness and node scores, for placing, moving, emptying and adding nodes (S2)."""
