"""What is kept of the past, and what is asked of it."""
