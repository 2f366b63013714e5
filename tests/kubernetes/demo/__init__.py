"""The demonstration on a real Kubernetes, which looks at the whole machine too: nothing else may run meanwhile."""
