"""Worked cases as data, and the code that runs them: ``python -m tests.vectors FILE...``."""
