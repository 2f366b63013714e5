"""Inputs of an image: Debian packages, wheels, and the checkout."""
