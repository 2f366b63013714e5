"""How Kubernetes spells the objects that groups read and write: pure decoding and encoding."""
