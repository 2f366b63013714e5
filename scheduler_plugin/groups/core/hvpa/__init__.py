"""HVPA: horizontal and vertical recommendations applied in tandem (S1)."""
