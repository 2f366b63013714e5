"""Costs of node choices: prices, fitness and scores, for placing and moving VMs, and draining and adding nodes (S2)."""
