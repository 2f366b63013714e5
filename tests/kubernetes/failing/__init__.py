"""Our programs over a real API server and etcd that fail: killed, restored, away, slow, cut off, with another clock."""
