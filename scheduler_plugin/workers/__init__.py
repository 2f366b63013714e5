"""Background workers that carry out what the ledger has decided."""
