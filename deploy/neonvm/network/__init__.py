"""Pod networks of local clusters: network namespaces, a QEMU hub, or loopback addresses."""
