"""The scheduler's settings: the document, its fields, and the file that is followed."""
