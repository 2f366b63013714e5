"""What is answered when the API server asks about a new pod (B.13)."""
