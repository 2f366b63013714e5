"""Summarizes many migrations of one VM (pure).

- A stall is the longest latency seen by a client that sends a query every 20 ms.
- A failed migration is counted, but has no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from scripts.autoscale.demonstration.moves import SUCCEEDED, ObservedMove
from scripts.autoscale.demonstration.pgbench import Outcome
from scripts.autoscale.demonstration.vm_clients import Noticed
from scripts.bench.echoes import Echoes


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
    echo_ms: LatencySpread
    echoes_lost: int
    moves_with_lost_echoes: int
    reasons: list[str]

    @property
    def is_clean(self) -> bool:
        """True if every migration succeeded, no transaction failed, and clients were running."""
        was_noticed = self.transactions > 0 and self.stall_ms.median is not None
        return self.succeeded == self.migrations > 0 and not self.failed_transactions and was_noticed


def figures(moves: Sequence[ObservedMove], noticed: Noticed, echoes: Echoes, load: Outcome) -> MigrationFigures:
    """The summary. ``load`` has the transactions, to which the probe's failed queries are added."""
    done = [move for move in moves if move.phase == SUCCEEDED and move.felt is not None]
    spans = [span for move in done if (span := move.felt) is not None]
    stalls = [noticed.longest_stall(since, until) for since, until in spans]
    waits = [echoes.waits(since, until) for since, until in spans]
    answered = [[wait for wait in of_move if wait is not None] for of_move in waits]
    return MigrationFigures(
        migrations=len(moves),
        succeeded=len(done),
        transactions=load.transactions,
        failed_transactions=load.failed + noticed.outcome.failed,
        total_ms=LatencySpread.of([float(move.total_ms) for move in done if move.total_ms is not None]),
        downtime_ms=LatencySpread.of([float(move.downtime_ms) for move in done if move.downtime_ms is not None]),
        stall_ms=LatencySpread.of([stall * 1000 for stall in stalls if stall is not None]),
        echo_ms=LatencySpread.of([max(of_move) * 1000 for of_move in answered if of_move]),
        echoes_lost=sum(of_move.count(None) for of_move in waits),
        moves_with_lost_echoes=sum(None in of_move for of_move in waits),
        reasons=sorted({move.reason or move.phase for move in moves if move.phase != SUCCEEDED}),
    )
