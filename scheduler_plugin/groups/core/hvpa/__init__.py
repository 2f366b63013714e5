"""HVPA: horizontal and vertical recommendations combined (S1)."""
