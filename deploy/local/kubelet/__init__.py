"""Kubelets of the embedded cluster: they start a guest and its agent for each VM pod on their node."""
