"""The cgroups of pods: locating them and reading the kernel's counters (B.7)."""
