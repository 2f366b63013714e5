"""Simulates a fleet in virtual time: the real agent core, ledger and planner play recordings (S4.7-S4.9)."""
