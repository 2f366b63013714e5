"""The past of a fleet: sizes, needs, decisions and migrations over time, kept for people. No decision depends on it."""
