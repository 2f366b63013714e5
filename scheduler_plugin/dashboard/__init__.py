"""The page: a fleet as it is now, live in a browser. It reads and changes nothing."""
