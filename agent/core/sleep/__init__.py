"""Automatic sleep of VMs with an idle database (B.18): when to order it, refusals, and wakes."""
