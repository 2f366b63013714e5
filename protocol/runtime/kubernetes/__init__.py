"""The kit that every program uses to talk to Kubernetes: clients, informers, the Lease, the work queue."""
