"""``autoscale sleep`` and ``autoscale wake``: put a VM to sleep, or wake it (B.18)."""
