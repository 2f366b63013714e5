"""What the page shows, and to whom: pure."""
