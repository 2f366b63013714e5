"""Texts of the programs that run VMs, one module per program. Pure.

They are templates for ``str.format``. Help texts are next to their flags and metrics.
"""
