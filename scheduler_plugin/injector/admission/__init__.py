"""The answer to the API server's review of a new pod (B.13)."""
