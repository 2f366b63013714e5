from __future__ import annotations

import doctest

from scheduler_plugin import databases


def test_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(databases).failed == 0
