"""A history in a file: what goes in comes out, whatever happens to the disk."""
