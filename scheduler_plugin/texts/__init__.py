"""All texts of the scheduler, by reader. Pure.

A text without a choice is a template for ``str.format``, so that a page of them reads as one text; mypy checks the
fields. Help texts of metrics stand beside the metrics in ``telemetry`` and ``metrics``.
"""
