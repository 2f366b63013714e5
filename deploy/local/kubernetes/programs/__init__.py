"""The programs of Kubernetes: which there are, at which versions, and how they are built and kept."""
