"""Hostile inputs for every decoder of every program: ``python -m tests.fuzz [--inputs N] [--seed S]``.

Rules that hold here:

- Inputs are valid examples that were damaged on purpose (``mutations``), so that they get past the first check.
- A target may raise the errors that it declares and nothing else, and no input may cost more than ``LIMIT`` of CPU.
- A new decoder is one line in ``targets.TARGETS``.
"""
