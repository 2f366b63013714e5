"""Smoothing as composable stages that decide the size, and when to shrink (S0)."""
