"""Summarizes many migrations of one VM (pure).

- A stall is the longest latency seen by a client that sends a query every 20 ms. The background is the same over
  spans of equal length without a migration, in the same run.
- A failed migration is counted, but has no times.
- What a client waits beside the standstill is the longest stall minus the standstill of the same migration; it
  includes the background. On an emulated guest it is mostly translation: the target's QEMU begins without any
  translated code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.moves import MARGIN, SUCCEEDED, ObservedMove
from scripts.autoscale.demonstration.pgbench import Outcome
from scripts.autoscale.demonstration.vm_clients import Noticed
from scripts.bench.frames.on_the_wire import OnTheWire
from scripts.bench.frames.tcp_counters import TcpCounters


class LatencySpread(msgspec.Struct, frozen=True):
    """Median and maximum of some milliseconds; None if there are none."""

    median: float | None
    max: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> LatencySpread:
        """The spread of ``values``."""
        return cls(round(median(values), 1), round(max(values), 1)) if values else cls(None, None)


class MigrationFigures(msgspec.Struct, frozen=True):
    """The outcome; times in milliseconds."""

    migrations: int
    succeeded: int
    transactions: int
    failed_transactions: int
    total_ms: LatencySpread
    downtime_ms: LatencySpread
    stall_ms: LatencySpread
    beside_standstill_ms: LatencySpread
    background_stall_ms: LatencySpread
    echo_ms: LatencySpread
    echoes_lost: int
    moves_with_lost_echoes: int
    client_tcp: TcpCounters | None
    guest_tcp: TcpCounters | None
    reasons: list[str]

    @property
    def is_clean(self) -> bool:
        """True if every migration succeeded, no transaction failed, and clients were running."""
        was_noticed = self.transactions > 0 and self.above_background_ms is not None
        return self.succeeded == self.migrations > 0 and not self.failed_transactions and was_noticed

    @property
    def above_background_ms(self) -> float | None:
        """The median stall of a migration minus that of the background, in milliseconds."""
        moving, still = self.stall_ms.median, self.background_stall_ms.median
        return None if moving is None or still is None else round(moving - still, 1)


@dataclass(frozen=True, slots=True)
class Background:
    """A span without a migration, and the probe's record of it."""

    since: Instant
    until: Instant
    noticed: Noticed

    def stalls(self, span: Seconds) -> list[float]:
        """The longest stall in milliseconds of each part that is ``span`` long."""
        # Parts as long as a migration: a longer span has longer stalls by chance alone.
        count = max(1, int((self.until - self.since) / span))
        starts = [Instant(self.since + span * number) for number in range(count)]
        stalls = [self.noticed.longest_stall(start, Instant(start + span)) for start in starts]
        return [stall * 1000 for stall in stalls if stall is not None]


def figures(
    moves: Sequence[ObservedMove], moving: Noticed, background: Background, wire: OnTheWire, load: Outcome
) -> MigrationFigures:
    """The summary. ``load`` has the transactions of both spans, to which the probes' failed queries are added."""
    done = [move for move in moves if move.phase == SUCCEEDED and move.felt is not None]
    spans = [span for move in done if (span := move.felt) is not None]
    stalls = [moving.longest_stall(since, until) for since, until in spans]
    beside = [
        stall * 1000 - move.downtime_ms
        for move, stall in zip(done, stalls, strict=True)
        if stall is not None and move.downtime_ms is not None
    ]
    echoes = [wire.echoes.waits(since, until) for since, until in spans]
    answered = [[wait for wait in waits if wait is not None] for waits in echoes]
    length = Seconds(median(until - since for since, until in spans)) if spans else Seconds(MARGIN * 2)
    return MigrationFigures(
        migrations=len(moves),
        succeeded=len(done),
        transactions=load.transactions,
        failed_transactions=load.failed + moving.outcome.failed + background.noticed.outcome.failed,
        total_ms=LatencySpread.of([float(move.total_ms) for move in done if move.total_ms is not None]),
        downtime_ms=LatencySpread.of([float(move.downtime_ms) for move in done if move.downtime_ms is not None]),
        stall_ms=LatencySpread.of([stall * 1000 for stall in stalls if stall is not None]),
        beside_standstill_ms=LatencySpread.of(beside),
        background_stall_ms=LatencySpread.of(background.stalls(length)),
        echo_ms=LatencySpread.of([max(waits) * 1000 for waits in answered if waits]),
        echoes_lost=sum(waits.count(None) for waits in echoes),
        moves_with_lost_echoes=sum(None in waits for waits in echoes),
        client_tcp=wire.client,
        guest_tcp=wire.guest,
        reasons=sorted({move.reason or move.phase for move in moves if move.phase != SUCCEEDED}),
    )
