"""Two replicas of our service, each with a kube-scheduler beside it, on a real Kubernetes."""
