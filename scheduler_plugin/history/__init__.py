"""History of a fleet, for users: sizes, needs, decisions and migrations. No decision depends on it."""
