from __future__ import annotations

import doctest

from scheduler_plugin.texts import explanations


def test_examples_hold() -> None:
    assert doctest.testmod(explanations) == doctest.TestResults(failed=0, attempted=1)
