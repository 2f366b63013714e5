"""The scheduler: a kube-scheduler extender that places postgres VMs, and the permits by which they grow."""
