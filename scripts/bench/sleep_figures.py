"""Results of ``bench-sleep``, and timing of the steps of falling asleep."""

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
    "memory given back, guest emptied",
    "frames diverted",
    "guest frozen and looked at",
    "QEMU stopped",
    "saved, QEMU ended",
    "disk flushed",
)


@dataclass(slots=True)
class SleepFigures:
    """Seconds until a query of an idle session (``idle``) or a new session (``new``) was answered, seconds of the
    steps of each sleep, sizes of images in MiB, and the numbers of all and of lost sessions.
    """

    idle: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    sessions: int = 0
    lost: int = 0

    @property
    def is_clean(self) -> bool:
        """True if there were sessions of both kinds, and none was lost."""
        return bool(self.idle and self.new) and not self.lost


def table(figures: SleepFigures) -> Table:
    """The figures as a table (pure)."""
    view = Table("", "median", "longest", title=f"{figures.lost} of {figures.sessions} sessions lost")
    columns = zip(*figures.steps, strict=True)
    rows = [
        ("idle session answered", figures.idle),
        ("new session ready", figures.new),
        ("falling asleep", [sum(steps) for steps in figures.steps]),
        *((f"  {name}", column) for name, column in zip(STEPS, columns, strict=False)),
    ]
    for name, seconds in rows:
        if seconds:
            view.add_row(name, f"{median(seconds):.2f} s", f"{max(seconds):.2f} s")
    if figures.sizes:
        view.add_row("image", f"{median(figures.sizes):.0f} MiB", f"{max(figures.sizes):.0f} MiB")
    return view


class TimedSleeper(NetworkStandIn):
    """Records the end of each step of falling asleep in ``times``."""

    times: list[Instant]

    def read_diverted(self, end: socket.socket) -> None:
        """End of the step that frees memory."""
        self.times.append(SystemClock().now())
        super().read_diverted(end)

    async def call(self) -> str:
        """End of a step."""
        self.times.append(SystemClock().now())
        return await super().call()

    def read_network(self) -> None:
        """End of QEMU."""
        self.times.append(SystemClock().now())
        super().read_network()
