"""The scheduler's access to the Kubernetes API: list and watch, decoding into facts, and writes."""
