"""Types shared by all parts of the API server: JSON values, errors, names, selectors, media types. Pure."""
