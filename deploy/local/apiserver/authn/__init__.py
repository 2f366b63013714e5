"""Who sends a request: bearer tokens, service accounts and the reviews of them."""
