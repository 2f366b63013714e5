"""Requirements on every Kubernetes API, tested with our own server, a real Kubernetes and yours.

- ``ours``: always. ``real``: under the marker ``kubernetes`` (``make test-kubernetes``), which brings one up.
- ``named``: the cluster of ``AUTOSCALE_TEST_KUBECONFIG``, a kubeconfig with a token or a client certificate (marker
  ``cluster``), with ``AUTOSCALE_TEST_CONTROLLERS=1`` where kube-controller-manager runs.

Everything is asked over HTTP; nothing here knows what is behind it. Tests make namespaces and definitions of their own
and remove them. Pods are bound to a node that no kubelet has.
"""
