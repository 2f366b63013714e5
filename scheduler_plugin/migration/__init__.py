"""Carries out and reports the migrations that ``scheduler_plugin.planner`` decides (S4.8, S4.9)."""
