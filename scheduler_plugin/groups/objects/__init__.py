"""Objects that groups read and write, as in the Kubernetes API: pure decoding and encoding."""
