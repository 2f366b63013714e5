"""The Kubernetes API without I/O: paths, refusals, pages, watch events, metadata, kubeconfigs.

- Every program of this project that talks to an API server uses these modules; only the transports differ.
- A function raises only the errors that it declares, for any input, in time linear in the input's length.
"""
