"""The agent's ports carried out: the guest's metrics, the scheduler, the VM's object, and the proof of who asks."""
