"""Rules for the contents of an image, and for its platform (pure)."""
