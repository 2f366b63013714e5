"""What recorded time costs."""
