"""Formats of images and their inputs: OCI, tar, deb, wheel, ELF (pure)."""
