"""Python's garbage collector in programs that hold many objects and change few of them."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (20_000, 10, 200)
"""See ``gc.set_threshold``. With the defaults of Python 3.11 (700, 10, 10), a full collection runs several times a
minute under load, and pauses the program.
"""


def tune_gc() -> None:
    """Exclude all current objects from garbage collection, and raise its thresholds."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
