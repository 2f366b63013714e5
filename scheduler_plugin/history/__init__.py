"""History of a fleet for people: sizes, needs, decisions and migrations. Nothing is decided from it."""
