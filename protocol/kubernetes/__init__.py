"""The Kubernetes API without any input or output: paths, refusals, pages, watch lines, metadata, kubeconfigs.

- Every program of this project that speaks to an API server speaks through these modules; only sockets differ.
- Bytes from a server never raise anything but the error that a function declares, and cost time linear in their length.
"""
