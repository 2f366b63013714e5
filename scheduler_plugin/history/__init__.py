"""History of a fleet for people: sizes, needs, decisions and migrations. No decision depends on it."""
