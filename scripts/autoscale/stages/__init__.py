"""Clusters that are made for one purpose and removed afterwards, and what the demonstration asks of either kind."""
