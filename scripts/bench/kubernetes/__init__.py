"""``make bench-kubernetes``: our scheduler with a real etcd, kube-apiserver and kube-scheduler."""
