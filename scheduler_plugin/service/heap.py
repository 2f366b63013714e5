"""A heap that is large and hardly changes, and Python's garbage collector.

Rules that hold here:

- What was read of the cluster stays for as long as the process. A full collection would look at all of it again, and at
  10,000 VMs stop every answer for a fifth of a second: so it is set aside once, when the ledger is ready.
- Until then nothing is collected, for at most ``LONGEST_START``: the collector would look at all that was read again
  and again, which takes more time than reading it.
- Set aside is not kept alive: what is no longer referenced is still freed at once.
- What answers leave behind is looked at while it is young and few; all of it together only after millions more.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Seconds

INTERVAL: Final = Seconds(0.5)

LONGEST_START: Final = Seconds(60.0)
"""A scheduler that still waits for its cluster has garbage like any other."""

THRESHOLDS: Final = (2_000, 4, 500)
"""See ``gc.set_threshold``; Python's own (700, 10, 10) look at everything some times in a minute under load."""


async def set_aside(clock: Clock, is_ready: Callable[[], bool]) -> None:
    """Pause the collector until the cluster has been read, then freeze all objects."""
    deadline = clock.now() + LONGEST_START
    gc.disable()
    try:
        while not is_ready():
            await clock.sleep(INTERVAL)
            if clock.now() >= deadline:
                gc.enable()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
    finally:
        gc.enable()
