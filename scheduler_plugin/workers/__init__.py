"""What carries out in the background what the ledger has decided."""
