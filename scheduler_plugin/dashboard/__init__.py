"""The web page: a live view of the fleet, read-only."""
