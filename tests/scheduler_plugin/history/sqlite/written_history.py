"""What tests write to a history."""

from __future__ import annotations

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import DAY, MINUTE, Millis, Size, VmRecord
from scheduler_plugin.history.core.spans import Span, sample_span
from scheduler_plugin.history.ports import Period

NOW: Millis = 1_767_225_600_000
DB = ObjectName("default", "db")
FACTS = VmRecord(DB, "n1", "shop", Size(250, 1024), Size(8000, 4096), (("team", "a"),))
ROW = (2000, 4096, 1000, 2048, 2000, 4096, 2000, 4096, None, None)
EVER = Period(0, NOW + DAY)


def minutes(count: int, since: Millis = NOW, facts: VmRecord = FACTS) -> list[tuple[VmRecord, Span]]:
    """A span for each minute, each with its own need."""
    return [
        (facts, sample_span(since + at * MINUTE, since + (at + 1) * MINUTE, (*ROW[:2], 1000 + at, *ROW[3:])))
        for at in range(count)
    ]
