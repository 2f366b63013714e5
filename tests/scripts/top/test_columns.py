"""Columns of a table by width: names and numbers are never truncated."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kubernetes.objects import Json
from protocol.names import ANNOTATION_BOUNDS
from scheduler_plugin.dashboard.core.states import NODE_STATES, VM_STATES
from scripts.autoscale.top.columns import (
    NODE_COLUMNS,
    VM_COLUMNS,
    ColumnType,
    TableRow,
    fitted,
    header,
    line,
    shortened,
    taken,
)
from scripts.autoscale.top.row_list import STYLES
from scripts.autoscale.top.rows import node_line, vm_row
from tests.pod_databases import pod_database
from tests.scripts.top.fleet_fixture import DENIED, FEW, MOVE, agent, node, vm

AT = "2026-01-01T00:00:00Z"
AT_WIDTH = {
    40: "database vCPU memory",
    80: "database state vCPU busy memory used",
    120: "database state node vCPU busy memory used permit vCPU",
    150: "database state node vCPU busy memory used goal vCPU goal memory permit vCPU permit memory",
    250: "database state node vCPU busy memory used goal vCPU goal memory permit vCPU permit memory last decision",
}


@pytest.mark.parametrize("width", AT_WIDTH)
def test_least_important_columns_are_hidden_first(width: int) -> None:
    placed = fitted(VM_COLUMNS, FEW, width)
    assert " ".join(each.column.heading for each in placed) == AT_WIDTH[width]


@pytest.mark.parametrize("width", [80, 120, 150, 250])
def test_no_name_and_no_number_is_cut(width: int) -> None:
    placed = fitted(VM_COLUMNS, FEW, width)
    for row in FEW:
        shown = line(row, placed)
        assert len(shown) <= width
        assert all(row.cells[each.index] in shown for each in placed if each.column.kind != ColumnType.SENTENCE)


ROWS = st.lists(
    st.builds(
        lambda cells: TableRow(cells[0], tuple(cells)),
        st.lists(st.text("abc-1 ", min_size=1, max_size=90), min_size=len(VM_COLUMNS), max_size=len(VM_COLUMNS)),
    ),
    max_size=4,
)


@given(ROWS, st.integers(1, 300), st.sampled_from(["", *(each.key for each in VM_COLUMNS)]))
def test_only_fixed_columns_exceed_the_terminal(rows: list[TableRow], width: int, by: str) -> None:
    placed = fitted(VM_COLUMNS, rows, width, by)
    assert {0} == {each.column.importance for each in placed} or taken(placed) <= width
    assert all(
        len(row.cells[each.index]) <= each.width for row in rows for each in placed if each.column.importance < 9
    )
    assert {each.key for each in VM_COLUMNS if each.importance == 0} <= {each.column.key for each in placed}


def test_sorted_column_has_an_arrow() -> None:
    placed = fitted(VM_COLUMNS[:1], FEW[:1], 80, "vm")
    assert (header(placed, "vm"), header(placed, "vm", descending=True)) == ("database ▲", "database ▼")


@pytest.mark.parametrize(
    ("sentence", "width", "shown"),
    [("all of it", 9, "all of it"), ("growing for cpu", 14, "growing for…"), ("unbreakable", 6, "unbre…")],
)
def test_a_sentence_is_cut_between_words(sentence: str, width: int, shown: str) -> None:
    assert shortened(sentence, width) == shown


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    assert vm_row(vm("db"), {"because": "\x1b]0;x\x07\ty"}, {}, None).cells[-1] == "␛]0;x␇ y"


def test_row_shows_known_amounts() -> None:
    known = ("2", "1.90", "2Gi", "1024Mi", "3", "3072Mi", "2500m", "3Gi")
    found = vm_row(vm("db"), agent(more={"because": "why"}), {}, None)
    assert found == TableRow(
        "default/db", ("default/db", "Running", "node-1", *known, "why"), "default", "node-1", "Running"
    )
    silent = vm_row(vm("db", "", "", "", ""), {}, {"permit": {"cpu": "1", "mem": "1Gi"}}, None)
    assert silent.cells == ("default/db", "Pending", *"-------", "-", "1", "1Gi", "-")[:2] + ("-",) * 7 + (
        "1",
        "1Gi",
        "-",
    )
    assert (FEW[1].node, FEW[1].state) == ("node-2 ⇢ node-11 75 %", "migrating")


def test_a_pod_is_shown_like_a_vm() -> None:
    known = ("1", "1.90", "1Gi", "1024Mi", "3", "3072Mi", "2500m", "3Gi")
    found = vm_row(pod_database(), agent(more={"because": "why"}), {}, None)
    name = "default/pod/pg-1"
    assert found == TableRow(name, (name, "Running", "n1", *known, "why"), "default", "n1", "Running")
    starting = vm_row(pod_database(containerStatuses=[]), {}, {}, None)
    assert (starting.state, starting.cells[3], starting.cells[5]) == ("Pending", "-", "-")
    unreadable = vm_row(pod_database(bounds=""), {}, {}, None)
    assert (unreadable.state, unreadable.cells[3]) == ("unhealthy", "-")
    assert ANNOTATION_BOUNDS in unreadable.cells[-1]


def test_wait_of_a_move_stands_beside_it() -> None:
    waits: Json = {"status": {"phase": "Pending", "conditions": [{"message": "no node has room for 3 vCPU"}]}}
    row = vm_row(vm("db", "node-10"), agent(more={"because": "why"}), {}, waits)
    assert (row.node, row.cells[-1]) == ("node-10 ⇢ waiting", "migration: no node has room for 3 vCPU")


def test_rows_tell_scarcity() -> None:
    waits: Json = {"denied": {"cpu": "2", "mem": "0"}, "promised": {"cpu": "1500m", "mem": "0"}}
    gave: Json = {"gaveBack": {"amount": {"cpu": "1", "mem": "0"}, "at": AT, "to": ["default/db-7", "shop/db"]}}
    because = agent(more={"because": "why"})
    rows = [vm_row(vm("db"), because, pod, None) for pod in (waits, gave)]
    assert [row.cells[-1] for row in rows] == [
        "waiting for 2 vCPU, 1.5 vCPU promised by neighbours; why",
        f"why; gave back 1 vCPU to db-7 and shop/db at {datetime.fromisoformat(AT).astimezone():%H:%M %Z}",
    ]
    short = node_line({**node("n1"), **waits, "pods": [waits, waits, {}]})
    assert short.cells[-2] == "2 databases waiting for 2 vCPU, 1.5 vCPU promised by neighbours"


@pytest.mark.parametrize(
    ("account", "pod", "state"),
    [
        (agent(more=DENIED), {}, "denied"),
        ({}, {"denied": {"cpu": "1", "mem": "0"}}, "denied"),
        ({}, {"denied": {"cpu": "0", "mem": "0"}}, "Running"),
        (agent(more={"troubles": [{"with": "metrics"}]}), {}, "agent-problem"),
    ],
)
def test_vm_state_is_its_problem(account: dict[str, object], pod: dict[str, object], state: str) -> None:
    assert vm_row(vm("db"), account, pod, None).state == state


def test_worst_state_is_shown() -> None:
    account = agent(more=DENIED | {"troubles": [{"with": "metrics"}]})
    unread: Json = {"metadata": {"namespace": "default", "name": "db"}}
    states = [
        vm_row(unread, account, {}, MOVE, is_waiting=True),
        vm_row(vm("db", phase="Failed"), account, {}, MOVE, is_waiting=True),
        vm_row(vm("db"), account, {}, MOVE, is_waiting=True),
        vm_row(vm("db"), account, {}, MOVE),
        vm_row(vm("db"), agent(more={"troubles": [{"with": "metrics"}]}), {}, MOVE),
        vm_row(vm("db"), agent(), {}, MOVE),
        vm_row(vm("db"), agent(), {}, None),
    ]
    words = ["unhealthy", "unhealthy", "waiting", "denied", "agent-problem", "migrating", "Running"]
    assert [each.state for each in states] == words


def test_every_problem_state_has_a_style() -> None:
    assert {each.word for each in (*VM_STATES, *NODE_STATES)} - set(STYLES) == set()


def test_node_row_shows_watermark_and_pressure() -> None:
    cells = dict(zip([each.key for each in NODE_COLUMNS], node_line(node("n1", "1Gi")).cells, strict=True))
    assert cells == {
        "node": "n1",
        "state": "over-watermark",
        "vms": "1",
        "cpuBar": "████████████·········│··",
        "cpuReserved": "4",
        "cpuWatermark": "7200m",
        "cpuTotal": "8",
        "memoryBar": "███████████│············",
        "memoryReserved": "1024Mi",
        "memoryWatermark": "1024Mi",
        "memoryTotal": "2048Mi",
        "pressureCpu": "0",
        "pressureMemory": "1024Mi",
        "waiting": "-",
        "stuck": "-",
    }
    assert node_line({**node("n1"), "open": False}).state == "cordoned"
    assert node_line({**node("n1", "1Gi"), "stuck": "no VM may move"}).state == "cannot-drain"


def test_sleeper_says_since_when() -> None:
    """Its agent has decided nothing else; what a VM that wakes waits for comes first."""
    asleep: Json = {**vm("db"), "status": {"phase": "Asleep", "node": "n1", "sleep": {"state": "Asleep", "since": AT}}}
    row = vm_row(asleep, {"because": "asleep: it has given up its permit"}, {}, None)
    assert (row.state, row.cells[-1]) == ("asleep", "asleep since 2026-01-01 00:00 UTC, 0 sessions open")
    waking: Json = {
        **asleep,
        "status": {"phase": "Waking", "sleep": {"state": "Waking", "message": "10.1.2.3:9 asked"}},
    }
    row = vm_row(waking, {}, {"waiting": "waits"}, None)
    assert (row.state, "waking: 10.1.2.3:9 asked" in row.cells[-1]) == ("waking", True)
