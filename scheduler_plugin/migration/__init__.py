"""Everything about moves (S4.8, S4.9): ``core`` decides, the modules beside it carry out and report."""
