"""Python's garbage collector in programs that hold many objects and change few of them."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (20_000, 10, 200)
"""See ``gc.set_threshold``. With Python 3.11's own (700, 10, 10), a full collection runs several times a minute under
load, and stops the program meanwhile."""


def collect_seldom() -> None:
    """Freeze the current objects and raises the thresholds."""
    # No later collection scans frozen objects.
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
