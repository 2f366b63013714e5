"""Guests of the local cluster: real ones in QEMU, and light ones that play a load."""
