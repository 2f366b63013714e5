"""Moves VMs (S4.8, S4.9): carries out and reports what ``scheduler_plugin.planner`` decides."""
