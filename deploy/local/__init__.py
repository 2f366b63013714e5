"""The whole system on one machine: API server, scheduling loop, NeonVM runtime, nodes and guests."""
