"""What every Kubernetes API must do for this project: by default asked of our own server, and of a real one on request.

Set ``AUTOSCALE_TEST_KUBECONFIG`` to a kubeconfig with a token or a client certificate to ask that cluster as well
(marker ``cluster``), and ``AUTOSCALE_TEST_CONTROLLERS=1`` where it runs kube-controller-manager. Everything is asked
over HTTP; nothing here knows what is behind it. Tests make namespaces and definitions of their own and remove them.
"""
