"""The guest image: postgres and node_exporter on a Linux small enough to boot in seconds (S4.11)."""
