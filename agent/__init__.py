"""autoscaler-agent: watches the load of postgres VMs, requests permits from the scheduler, and resizes VMs (S4.3)."""
