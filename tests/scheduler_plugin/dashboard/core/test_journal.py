from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.dashboard.core import journal as journals
from scheduler_plugin.dashboard.core.journal import Change, Journal
from scheduler_plugin.dashboard.core.rows import NodeRow, Row, VmRow

ONE, OTHER = VmRow("default/a", "default"), VmRow("default/b", "default")


def test_reader_gets_exactly_missed_changes() -> None:
    journal = Journal()
    assert [journal.put("vm", ONE), journal.put("vm", ONE), journal.put("vm", OTHER)] == [True, False, True]
    assert journal.since(1) == Change(2, [("vm", OTHER)], [])
    assert [journal.remove("vm", OTHER.key), journal.remove("vm", OTHER.key)] == [True, False]
    assert journal.since(2) == Change(3, [], [("vm", "default/b", "default")])
    assert journal.since(3) == Change(3, [], [])
    assert (journal.get("vm", ONE.key), journal.get("vm", OTHER.key)) == (ONE, None)


def test_a_row_that_comes_back_is_not_gone() -> None:
    journal = Journal()
    journal.put("vm", ONE)
    journal.remove("vm", ONE.key)
    journal.put("vm", ONE)
    assert journal.since(1) == Change(3, [("vm", ONE)], [])


def test_stale_or_future_reader_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MOST_GONE", 1)
    journal = Journal()
    for row in (ONE, OTHER):
        journal.put("vm", row)
    for row in (ONE, OTHER):
        journal.remove("vm", row.key)
    assert (journal.since(2), journal.since(9)) == (None, None)
    assert journal.since(3) == Change(4, [], [("vm", OTHER.key, "default")])


def test_a_kind_is_replaced_as_a_whole() -> None:
    journal = Journal()
    nodes: list[Row] = [NodeRow("n1", ""), NodeRow("n2", "")]
    assert journal.replace("node", nodes)
    assert not journal.replace("node", nodes)
    assert journal.replace("node", nodes[1:])
    assert journal.of("node") == {"n2": nodes[1]}


steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=12)


@mock.patch.object(journals, "MOST_GONE", 2)
@given(steps, st.data())
def test_snapshot_plus_changes_equals_state(history: list[tuple[str, int]], data: st.DataObject) -> None:
    journal = Journal()
    seen = data.draw(st.integers(0, len(history)))
    known: dict[str, Row] = {}
    read = 0
    for at, (name, size) in enumerate(history):
        if size:
            journal.put("vm", VmRow(name, "default", use=(size, size)))
        else:
            journal.remove("vm", name)
        if at >= seen:
            change = journal.since(read)
            if change is None:
                known, change = {}, journal.everything()
            for _, key, _ in change.gone:
                known.pop(key, None)
            known |= {row.key: row for _, row in change.rows}
            read = change.revision
            assert known == journal.of("vm")
