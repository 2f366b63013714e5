"""Tests of the costs of recorded time."""
