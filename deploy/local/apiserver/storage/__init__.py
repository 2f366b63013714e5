"""The objects and their recent history in memory, and the file that keeps them."""
