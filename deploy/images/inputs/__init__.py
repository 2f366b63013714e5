"""Sources of an image: Debian, the index of wheels, and the checkout."""
