"""One autoscaler-agent: it watches the load of postgres VMs, asks the scheduler, and resizes them (S4.3)."""
