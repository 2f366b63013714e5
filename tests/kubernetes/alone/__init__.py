"""Tests that compare the whole machine before and after; no other cluster may start or stop meanwhile."""
