from __future__ import annotations

from protocol.messages import ObjectName
from scheduler_plugin.dashboard.core.past import past
from scheduler_plugin.history.core.samples import VM_COLUMNS, DecisionRecord, MoveRecord
from scheduler_plugin.history.core.spans import sample_span

KNOWN = tuple(range(len(VM_COLUMNS)))


def test_unseen_time_is_chart_gap() -> None:
    spans = [sample_span(1000, 2000, KNOWN), sample_span(2000, 3000, KNOWN), sample_span(5000, 6000, KNOWN)]
    said = [DecisionRecord(2000, ObjectName("default", "db"), "agent", ("growing", "more"), denied=True)]
    found = past(spans, said)
    assert found["at"] == [1.0, 2.0, 3.0, 3.001, 5.0, 6.0]
    assert found["columns"] == {name: [at, at, at, None, at, at] for at, name in enumerate(VM_COLUMNS)}
    assert found["decisions"] == [{"at": 2.0, "by": "agent", "said": ["growing", "more"], "denied": True}]


def test_without_a_past_there_is_nothing() -> None:
    assert past([], []) == {"at": [], "columns": {name: [] for name in VM_COLUMNS}, "decisions": [], "moves": []}


def test_migrations_that_are_over_are_told_in_seconds() -> None:
    name, vm = ObjectName("default", "db-moves"), ObjectName("default", "db")
    moved = MoveRecord(name, vm, "n1", "n2", "Succeeded", 2000, 14_500, "n1 is full", 57)
    assert past([], [], [moved])["moves"] == [
        {
            "key": "default/db-moves",
            "vm": "default/db",
            "phase": "Succeeded",
            "source": "n1",
            "target": "n2",
            "reason": "n1 is full",
            "since": 2.0,
            "until": 14.5,
            "downtime": 57,
        }
    ]
