"""QEMU: process, QMP monitor, command line, live migration."""
