"""Metrics, rules, alerts and dashboards agree with each other and with the programs."""
