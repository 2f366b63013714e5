"""Samples, spans, integrals and coarser spans."""
