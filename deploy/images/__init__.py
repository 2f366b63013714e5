"""Container images from Debian packages and locked wheels, built and pushed without Docker."""
