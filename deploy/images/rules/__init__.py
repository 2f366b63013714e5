"""What an image holds, and for which platform (pure)."""
