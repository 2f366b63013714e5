"""What is asked of a cluster's record: what VMs cost."""
