"""QEMU guests: resize, migration and sleep."""
