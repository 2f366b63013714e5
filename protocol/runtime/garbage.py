"""Python's garbage collector in programs that hold much and change little of it."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (20_000, 10, 200)
"""See ``gc.set_threshold``. Python's own (700, 10, 10) look at everything some times in a minute under load, and stop
the program for as long as that takes."""


def collect_seldom() -> None:
    """Freeze current objects and raise the GC thresholds."""
    # Frozen objects are never looked at again.
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
