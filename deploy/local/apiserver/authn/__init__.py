"""Authentication of requests: bearer tokens, service accounts and TokenReviews."""
