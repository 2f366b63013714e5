"""Sleep of a guest: snapshot to a file, exit QEMU, keep TCP sessions open, resume on the next packet (B.18)."""
