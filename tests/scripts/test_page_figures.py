"""From what was stored and shown to the figures of the page's measurement."""

from __future__ import annotations

import doctest

import pytest

from scripts.bench.page import page_figures
from scripts.bench.page.page_figures import followed


def test_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(page_figures).failed == 0


def test_a_page_that_skips_to_what_is_newest_has_shown_what_came_before() -> None:
    stored = {"db": [(1.0, (1, 1)), (1.25, (2, 2)), (5.0, (1, 1))], "web": [(2.0, (4, 4))]}
    shown = {"db": [(0.0, (1, 1)), (1.5, (2, 2)), (5.5, (1, 1))], "web": [(1.75, (4, 4))]}
    assert followed(stored, shown) == ([0.5, 0.25, 0.5, 0.0], 0)


@pytest.mark.parametrize("shown", [{}, {"db": [(0.0, (2, 2))]}, {"db": [(3.0, (7, 7))]}])
def test_a_permit_that_no_page_shows_is_told(shown: dict[str, list[tuple[float, tuple[int, int]]]]) -> None:
    assert followed({"db": [(1.0, (2, 2))]}, shown) == ([], 1)
