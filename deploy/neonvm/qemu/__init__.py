"""Real guests in QEMU: how they are started, resized, watched and moved."""
