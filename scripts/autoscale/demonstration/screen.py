"""Output of a demonstration: a live panel in a terminal, otherwise lines of text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from protocol.guest.sleep import SLEEPING
from protocol.units import Resources, Seconds
from scripts.autoscale.demonstration.fleet import bar, sparkline
from scripts.autoscale.demonstration.watcher import Snapshot

_HISTORY: Final = 48
_DECISIONS: Final = 6
_PLAIN_EVERY: Final = 3

Fleet = Sequence[tuple[str, str, str]]
"""A row for each node: its name, a bar, and the VMs on it."""


def line(at: Seconds, step: str, snapshot: Snapshot, tps: float | None) -> str:
    """The state as a line of text."""
    waits = snapshot.phase if snapshot.phase in SLEEPING else "no guest yet"
    if snapshot.condition:
        waits = f"{waits}: {snapshot.condition}"
    size = waits if snapshot.size is None else f"{snapshot.size.cpu} vCPU {snapshot.size.mem}"
    used = "" if snapshot.used_cpu is None else f", {snapshot.used_cpu:.1f} busy"
    speed = "" if tps is None else f", {tps:.0f} tps"
    return f"{at:6.1f} s  {step:10}  {size}{used}{speed}"


@dataclass(slots=True)
class Screen:
    """A context manager; call ``show`` several times a second."""

    console: Console
    title: str
    events: deque[str] = field(default_factory=lambda: deque(maxlen=_DECISIONS))
    _live: Live | None = None
    _cpu: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _tps: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _last_state: tuple[str, Resources | None] = ("", None)
    _last_second: int = -1

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            # Transient, so that the summary replaces it at the end.
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def add_event(self, at: Seconds, what: str) -> None:
        """Shows an event."""
        self.events.append(f"{at:6.1f} s  {what}")
        if self._live is None:
            # The live panel lists events itself.
            self.console.print(f"{at:6.1f} s  {escape(what)}", soft_wrap=True)

    def show(self, at: Seconds, step: str, snapshot: Snapshot, tps: float | None, fleet: Fleet = ()) -> None:
        """Shows the current state; ``fleet`` contains a row for each node."""
        if self._live is None:
            self._plain(at, step, snapshot, tps)
            return
        # One point per second, although `show` is called more often.
        if int(at) != self._last_second:
            self._last_second = int(at)
            self._cpu.append(snapshot.size.cpu.as_cores if snapshot.size else 0.0)
            self._tps.append(tps or 0.0)
        self._live.update(self._picture(at, step, snapshot, tps, fleet))

    def _plain(self, at: Seconds, step: str, snapshot: Snapshot, tps: float | None) -> None:
        # A line for each change, and every few seconds so that the demonstration does not seem to hang.
        if (step, snapshot.size) != self._last_state or int(at) >= self._last_second + _PLAIN_EVERY:
            self._last_state, self._last_second = (step, snapshot.size), int(at)
            self.console.print(line(at, step, snapshot, tps), highlight=False, soft_wrap=True)

    def _picture(self, at: Seconds, step: str, snapshot: Snapshot, tps: float | None, fleet: Fleet = ()) -> Panel:
        table = Table.grid(padding=(0, 2))
        if snapshot.size is not None and snapshot.max_size is not None:
            cpu, max_cpu = snapshot.size.cpu.as_cores, snapshot.max_size.cpu.as_cores
            used = "" if snapshot.used_cpu is None else f"{snapshot.used_cpu:.1f} busy of "
            table.add_row(
                "vCPU", f"[cyan]{bar(snapshot.used_cpu, cpu, max_cpu)}[/cyan]", f"{used}{cpu:g} (at most {max_cpu:g})"
            )
            mem_used = None if snapshot.used_memory is None else snapshot.used_memory.as_gib
            text = "" if mem_used is None else f"{mem_used * 1024:.0f}Mi used of "
            picture = bar(mem_used, snapshot.size.mem.as_gib, snapshot.max_size.mem.as_gib)
            table.add_row(
                "memory",
                f"[magenta]{picture}[/magenta]",
                f"{text}{snapshot.size.mem} (at most {snapshot.max_size.mem})",
            )
        table.add_row("vCPU", f"[cyan]{sparkline(self._cpu)}[/cyan]", "over time")
        table.add_row(
            "tps", f"[green]{sparkline(self._tps)}[/green]", "" if tps is None else f"{tps:.0f} transactions/s"
        )
        for name, picture, vms in fleet:
            table.add_row(escape(name), f"[yellow]{picture}[/yellow]", escape(vms))
        waits = snapshot.condition if snapshot.size is None else ""
        why = Text(f"why: {snapshot.because or waits}" if snapshot.because or waits else "", style="italic")
        happened = Text("\n".join(self.events), style="dim")
        title = f"{self.title} · {at:.0f} s · {step} · {snapshot.phase} on {snapshot.node or '-'}"
        return Panel(Group(table, why, happened), title=escape(title), title_align="left")
