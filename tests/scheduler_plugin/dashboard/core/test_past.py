from __future__ import annotations

from protocol.messages import ObjectName
from scheduler_plugin.dashboard.core.past import past
from scheduler_plugin.history.core.samples import VM_COLUMNS, Decision
from scheduler_plugin.history.core.spans import held

KNOWN = tuple(range(len(VM_COLUMNS)))


def test_what_was_not_seen_is_a_gap_in_the_chart() -> None:
    spans = [held(1000, 2000, KNOWN), held(2000, 3000, KNOWN), held(5000, 6000, KNOWN)]
    said = [Decision(2000, ObjectName("default", "db"), "agent", ("growing", "more"), denied=True)]
    found = past(spans, said)
    assert found["at"] == [1.0, 2.0, 3.0, 3.001, 5.0, 6.0]
    assert found["columns"] == {name: [at, at, at, None, at, at] for at, name in enumerate(VM_COLUMNS)}
    assert found["decisions"] == [{"at": 2.0, "by": "agent", "said": ["growing", "more"], "denied": True}]


def test_without_a_past_there_is_nothing() -> None:
    assert past([], []) == {"at": [], "columns": {name: [] for name in VM_COLUMNS}, "decisions": []}
