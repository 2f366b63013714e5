"""Storage: objects and their recent history in memory, and a database file."""
