"""History of a VM for a chart. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kubernetes.objects import Json
from scheduler_plugin.history.core.samples import SECOND, VM_COLUMNS, DecisionRecord, MoveRecord
from scheduler_plugin.history.core.spans import Span


def past(spans: Sequence[Span], decisions: Sequence[DecisionRecord], moves: Sequence[MoveRecord] = ()) -> Json:
    """Data of a chart: means by column at the Unix times ``at``, oldest first, and decisions and migrations, newest
    first.

    Means are in milli-vCPUs and KiB, ``downtime`` in milliseconds; null is unknown, also between spans with a gap.
    """
    rows = _with_gaps(spans)
    means = [[None if span is None else span.mean(column) for _, span in rows] for column in VM_COLUMNS]
    decision_rows = [
        {"at": decision.at / SECOND, "by": decision.by, "said": list(decision.sentences), "denied": decision.denied}
        for decision in decisions
    ]
    return {
        "at": [at / SECOND for at, _ in rows],
        "columns": dict(zip(VM_COLUMNS, means, strict=True)),
        "decisions": decision_rows,
        "moves": [_moved(move) for move in moves],
    }


def _moved(move: MoveRecord) -> Json:
    return {
        "key": str(move.name),
        "vm": str(move.vm),
        "phase": move.phase,
        "source": move.source,
        "target": move.target,
        "reason": move.reason,
        "since": move.since / SECOND,
        "until": move.until / SECOND,
        "downtime": move.downtime,
    }


def _with_gaps(spans: Sequence[Span]) -> list[tuple[int, Span | None]]:
    rows: list[tuple[int, Span | None]] = []
    for span in spans:
        if rows and span.since > rows[-1][0]:
            # A null interrupts the line of the chart.
            rows.append((rows[-1][0] + 1, None))
        if not rows or rows[-1][1] is None:
            rows.append((span.since, span))
        # Points at both ends make a horizontal line.
        rows.append((span.until, span))
    return rows
