"""Two replicas of our service, each with its kube-scheduler, on a real Kubernetes."""
