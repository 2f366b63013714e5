"""Simulated guests: a model of a load instead of a VM, behind the same interface as QEMU guests."""
