"""Recorded workloads played through policies side by side, scored against an oracle that knows everything (B.5)."""
