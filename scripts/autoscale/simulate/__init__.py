"""A fleet in virtual time: the real agent core, ledger and planner, playing recordings (issue: scale, S4.7-S4.9)."""
