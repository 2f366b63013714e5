"""The rows that the page shows, and the rights of its readers: pure."""
