"""What was: sizes, needs, decisions and migrations of a fleet over time, kept for people. Losing it loses no safety."""
