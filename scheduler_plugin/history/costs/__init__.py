"""Costs of recorded time: reserved, used, and at fixed sizes, in hours and money (B.15). Pure.

Rules:

- Arithmetic is exact: fractions of integer integrals. Only ``rendering`` rounds.
- Every line is a sum of VMs, and lines add up to the total for any grouping.
"""
