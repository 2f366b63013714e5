"""What the page shows, without a server."""
