"""Kubelets of the local cluster: they start a guest and its agent for each VM pod that is bound to their node."""
