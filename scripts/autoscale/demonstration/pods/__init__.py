"""The demonstration with a database in an ordinary pod, on a real Kubernetes."""
