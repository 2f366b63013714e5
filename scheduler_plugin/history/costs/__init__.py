"""Costs of recorded time: reserved, used, and at fixed sizes, in hours and in money (B.15). Pure.

Rules that hold here:

- All arithmetic is exact: fractions, from integrals that are whole numbers. Only ``rendering`` rounds.
- Every line is a sum of VMs, and the lines add up to the total, whatever they are grouped by.
"""
