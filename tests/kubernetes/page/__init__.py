"""The page on a real Kubernetes."""
