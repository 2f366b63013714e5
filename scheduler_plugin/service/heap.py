"""Settings of Python's garbage collector for a heap that is large and hardly changes.

A full collection looks at every object that was read from the cluster. At 10,000 VMs it stops every answer for a fifth
of a second.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Seconds

INTERVAL: Final = Seconds(0.5)

LONGEST_START: Final = Seconds(60.0)
"""A scheduler that waits longer than this for its cluster needs the collector like any other process."""

THRESHOLDS: Final = (2_000, 4, 500)
"""See ``gc.set_threshold``; under load Python's own (700, 10, 10) cause several full collections a minute."""


async def set_aside(clock: Clock, is_ready: Callable[[], bool]) -> None:
    """Pause the collector until the cluster has been read, then freeze all objects."""
    deadline = clock.now() + LONGEST_START
    # While the cluster is read, the collector would go through all objects so far again and again, which takes longer
    # than reading them.
    gc.disable()
    try:
        while not is_ready():
            await clock.sleep(INTERVAL)
            if clock.now() >= deadline:
                gc.enable()
        # Frozen objects are still freed when their last reference goes; only the search for cycles skips them.
        gc.freeze()
        # Garbage of answers is found while it is young; a full collection comes only after millions of objects.
        gc.set_threshold(*THRESHOLDS)
    finally:
        gc.enable()
