"""What every part of the API server is written in: JSON values, refusals, names, selectors, media types. Pure."""
