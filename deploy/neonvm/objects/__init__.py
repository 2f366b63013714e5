"""Reads NeonVM's Kubernetes objects, and builds their pods and policies (pure, except ``vm_index``)."""
