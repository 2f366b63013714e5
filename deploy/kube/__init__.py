"""The Kubernetes API as the local runtime, the controllers of VMs and the command line use it."""
