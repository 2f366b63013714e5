"""The injector and its certificates on a real Kubernetes (`make test-adoption`)."""
