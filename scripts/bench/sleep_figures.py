"""Figures of many sleeps, and when each step of falling asleep ends."""

from __future__ import annotations

import socket
from statistics import median
from typing import Final

import msgspec
from rich.table import Table

from deploy.neonvm.sleep.sleeper import Sleeper
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


class SleepFigures(msgspec.Struct, frozen=True):
    """Seconds until the query of an idle session, or a new session, was answered; seconds of the steps of each sleep;
    sizes of images in MiB; and the number of sessions, and of those that were lost.
    """

    idle: list[float]
    new: list[float]
    steps: list[list[float]]
    sizes: list[float]
    sessions: int
    lost: int

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


class NotingSleeper(Sleeper):
    """Notes the end of each step of falling asleep in ``times``."""

    times: list[Instant]

    def read_diverted(self, end: socket.socket) -> None:
        """The guest has given up what it could."""
        self.times.append(SystemClock().now())
        super().read_diverted(end)

    async def call(self) -> str:
        """A step has ended: each of the next ones is watched."""
        self.times.append(SystemClock().now())
        return await super().call()

    def read_network(self) -> None:
        """QEMU has ended."""
        self.times.append(SystemClock().now())
        super().read_network()
