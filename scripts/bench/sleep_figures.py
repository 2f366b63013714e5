"""Results of ``bench-sleep``, and the time of each step of falling asleep."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from rich.table import Table

from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from protocol.runtime.clock import SystemClock
from protocol.units import Instant

STEPS: Final = (
    "guest memory freed",
    "frames diverted",
    "guest frozen and checked",
    "QEMU stopped",
    "saved, QEMU ended",
    "disk flushed",
)


@dataclass(slots=True)
class SleepFigures:
    """Latencies of wakes, steps of sleeps, and lost sessions.

    ``idle``: seconds until a query of an idle session is answered. ``new``: seconds until a new session is ready.
    ``moved``: like ``idle``, of a guest that wakes on another node.
    ``steps``: seconds of each of the ``STEPS``, one list per sleep. ``sizes``: sizes of memory images in MiB.
    """

    idle: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    sessions: int = 0
    lost: int = 0

    @property
    def is_clean(self) -> bool:
        """True if each kind of wake was measured, and no session was lost."""
        return bool(self.idle and self.new and self.moved) and not self.lost


def table(figures: SleepFigures) -> Table:
    """Format the figures as a table (pure)."""
    view = Table("", "median", "longest", title=f"{figures.lost} of {figures.sessions} sessions lost")
    columns = zip(*figures.steps, strict=True)
    rows = [
        ("idle session answered", figures.idle),
        ("new session ready", figures.new),
        ("idle session answered on another node", figures.moved),
        ("falling asleep", [sum(steps) for steps in figures.steps]),
        *((f"  {name}", column) for name, column in zip(STEPS, columns, strict=False)),
    ]
    for name, seconds in rows:
        if seconds:
            view.add_row(name, f"{median(seconds):.2f} s", f"{max(seconds):.2f} s")
    if figures.sizes:
        view.add_row("image", f"{median(figures.sizes):.0f} MiB", f"{max(figures.sizes):.0f} MiB")
    return view


class TimedStandIn(NetworkStandIn):
    """Records the end of each step of falling asleep in ``step_ends``."""

    step_ends: list[Instant]

    def read_diverted(self, end: socket.socket) -> None:
        """Record the end of freeing memory."""
        self.step_ends.append(SystemClock().now())
        super().read_diverted(end)

    async def wait_for_wake(self) -> str:
        """Record the end of a step."""
        self.step_ends.append(SystemClock().now())
        return await super().wait_for_wake()

    def read_network(self) -> None:
        """Record the end of QEMU."""
        self.step_ends.append(SystemClock().now())
        super().read_network()
