"""``make bench-kubernetes``: the scheduler's service beside a real etcd, kube-apiserver and kube-scheduler."""
