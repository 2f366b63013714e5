"""The scheduler: an extender of kube-scheduler that places postgres VMs, and the permits by which they grow."""
