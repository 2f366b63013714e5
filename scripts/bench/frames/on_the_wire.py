"""Record of single frames and segments (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.bench.frames.echoes import Echoes
from scripts.bench.frames.tcp_counters import TcpCounters


@dataclass(frozen=True, slots=True)
class OnTheWire:
    """Fate of single frames and segments while the VM moved. A client behind a hub has no counters."""

    echoes: Echoes
    client: TcpCounters | None
    guest: TcpCounters | None
