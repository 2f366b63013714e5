"""Our extender under the real kube-scheduler, with the rights, settings and credentials of its manifest."""
