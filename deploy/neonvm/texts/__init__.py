"""All texts of the programs that run VMs, one module for each program. Pure.

A text without a choice is a template for ``str.format``. Help texts stand with their flags and metrics.
"""
