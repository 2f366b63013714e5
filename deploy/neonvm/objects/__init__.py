"""NeonVM's Kubernetes objects: how they are read and which pods are made for them (pure, aside from an index)."""
