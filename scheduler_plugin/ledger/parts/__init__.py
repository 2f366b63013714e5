"""The parts of the ledger's interface, one file for each caller; they share one state."""
