"""Counts the work of an action: the calls of Python functions, which no busy machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def steps(action: Callable[[], object]) -> int:
    """Number of calls of Python functions during ``action``."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls
