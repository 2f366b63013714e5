"""Implementations of the agent's ports: the guest's metrics and monitor, the scheduler, the VM's object, tokens."""
