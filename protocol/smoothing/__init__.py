"""Smoothing as composable stages: what size, and when to shrink (S0)."""
