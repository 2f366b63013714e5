"""The slowdown of this machine compared with an idle one, by which time limits are stretched.

``python -m tests.slowness`` works for some milliseconds now and then until its input ends, and prints how many times as
long as it computed that took, and for how many seconds it stood still at most.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Final

from tests.deploy.manifests import ROOT

PAUSE: Final = 0.05
WORK: Final = 0.002


class Slowness:
    """Measures while it is entered; ``factor`` is 1 on an idle machine, and ``standstill`` next to nothing."""

    def __init__(self) -> None:
        self.factor, self.standstill = 1.0, 0.0

    def __enter__(self) -> Slowness:
        # A process of its own: a thread would also wait for the threads of the test.
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        factor, standstill = self._process.communicate()[0].split()
        self.factor, self.standstill = max(1.0, float(factor)), float(standstill)

    def stretched(self, seconds: float) -> float:
        """The limit on this machine for an action that takes ``seconds`` on an idle one."""
        return seconds * self.factor + self.standstill


def main() -> None:
    """Works until the input ends."""
    over = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
    computed = took = standstill = 0.0
    before = time.monotonic()
    while not computed or not over.wait(PAUSE):
        began, began_at = time.thread_time(), time.monotonic()
        while time.thread_time() - began < WORK:
            pass
        now = time.monotonic()
        computed, took = computed + time.thread_time() - began, took + now - began_at
        before, standstill = now, max(standstill, now - before - PAUSE)
    print(took / computed, standstill)


def _wait_for_the_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main()
