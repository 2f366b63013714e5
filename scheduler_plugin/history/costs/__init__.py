"""Costs of reservations, of use, and of fixed sizes, in hours and money (B.15). Pure.

Rules:

- Arithmetic is exact, with fractions of integer integrals. Only ``rendering`` rounds.
- A line is a sum over VMs, and the lines of every grouping add up to the total.
"""
