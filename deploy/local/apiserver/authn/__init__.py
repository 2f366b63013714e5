"""Authentication of requests: bearer tokens, service accounts and the reviews of them."""
