"""The scheduler's settings: the document and its fields."""
