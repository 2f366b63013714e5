"""What costs take to compute for a large fleet."""
