"""The family smoothing: what our code answers to each group, and what it declines."""

from __future__ import annotations

from typing import Final

from tests.vectors.registry import Family

FAMILY: Final = Family("smoothing", groups={})
