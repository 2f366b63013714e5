"""The page: what it shows, to whom, and how it gets there."""
