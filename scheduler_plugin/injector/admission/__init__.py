"""Admission reviews of new pods (B.13)."""
