"""Recommenders for VMs, and for clusters without VPA and HPA controllers; their results have the same types."""
