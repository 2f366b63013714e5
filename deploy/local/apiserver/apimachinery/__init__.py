"""Vocabulary of all parts of the API server: JSON values, refusals, names, selectors, media types. Pure."""
