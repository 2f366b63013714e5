"""All texts of the scheduler, by reader. Pure.

Texts without a choice are templates for ``str.format``; mypy checks the fields. Help texts of metrics are in
``telemetry`` and ``metrics``.
"""
