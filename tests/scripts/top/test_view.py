"""A person sorts and filters a table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocol.kubernetes.objects import items
from scripts.autoscale.terminal.printing import Output
from scripts.autoscale.top.columns import VM_COLUMNS, View
from scripts.autoscale.top.command import fields, tables
from tests.scripts.top.fleet_fixture import BECAUSE, FEW, Scene

VIEW = View(VM_COLUMNS, "vm")
LONG, NEW, TWO, TEN = "default/a-database-with-a-long-name", "default/new", "shop/orders-2", "shop/orders-10"


def names(view: View) -> list[str]:
    return [row.name for row in view.rows(FEW)]


@pytest.mark.parametrize(
    ("view", "order"),
    [
        (VIEW, [LONG, NEW, TWO, TEN]),
        (VIEW.reversed(), [TEN, TWO, NEW, LONG]),
        (View(VM_COLUMNS, "cpu", descending=True), [TEN, LONG, TWO, NEW]),
        (View(VM_COLUMNS, "memory"), [NEW, LONG, TWO, TEN]),
        (View(VM_COLUMNS, "state"), [NEW, TWO, LONG, TEN]),
    ],
)
def test_rows_sort_numerically(view: View, order: list[str]) -> None:
    assert names(view) == order


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ("", [LONG, NEW, TWO, TEN]),
        ("ORDERS", [TWO, TEN]),
        ("ns:shop", [TWO, TEN]),
        ("namespace=default long", [LONG]),
        ("node=node-1", [LONG, TWO]),
        ("node=node-11", [TEN]),
        ("node:node-1", [LONG, TWO, TEN]),
        ("state:den", [LONG]),
        ("what:else", []),
    ],
)
def test_a_filter_is_words_and_fields(words: str, passed: list[str]) -> None:
    assert names(VIEW.filtered(words)) == passed


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (lambda view: view.next_column(VM_COLUMNS[:4], 1), ("state", False)),
        (lambda view: view.next_column(VM_COLUMNS[:4], -1), ("cpu", True)),
        (lambda view: view.next_column(VM_COLUMNS[1:4], 1), ("state", False)),
    ],
)
def test_the_next_column_is_one_that_is_seen(turn: Callable[[View], View], expected: tuple[str, bool]) -> None:
    turned = turn(VIEW)
    assert (turned.sorted_by, turned.descending) == expected


def test_pipe_gets_all_vms_untruncated() -> None:
    printed = list(tables("a test", Scene().seen, Output.TEXT))
    at = printed.index("")
    assert [each.split()[0] for each in printed[:at]] == ["a", "node", "node-1", "node-2"]
    assert [each.split()[0] for each in printed[at + 1 :]] == ["database", LONG, NEW, TWO, TEN]
    assert printed[-1].endswith(BECAUSE)
    assert "goal vCPU" not in printed[at + 1]
    assert "goal vCPU" in list(tables("a test", Scene().seen, Output.WIDE))[at + 1]


def test_scripts_get_the_same_as_fields() -> None:
    found = fields(Scene().seen)
    nodes, vms = items(found, "nodes"), items(found, "vms")
    assert [each["vm"] for each in vms] == [LONG, NEW, TWO, TEN]
    assert vms[1] == {each.key: None for each in VM_COLUMNS} | {"vm": NEW, "state": "Pending"}
    assert nodes[1]["pressureMemory"] == "1024Mi"
    assert "cpuBar" not in nodes[1]
