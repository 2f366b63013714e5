"""Our own recommenders, for VMs and clusters without VPA and HPA controllers. They return the same types."""
