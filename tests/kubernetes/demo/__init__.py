"""The demo on a real Kubernetes. It compares the whole machine too, so nothing else may run meanwhile."""
