"""Where an image comes from: Debian, the index of wheels, and the checkout."""
