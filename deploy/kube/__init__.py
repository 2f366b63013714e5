"""The Kubernetes API as the local runtime and the command line use it: plain JSON over httpx2."""
