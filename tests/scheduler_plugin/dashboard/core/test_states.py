from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from protocol.kubernetes.access_reviews import Scope
from scheduler_plugin.dashboard.core.rows import NodeRow, VmRow, node_stated, vm_stated
from scheduler_plugin.dashboard.core.states import CALM, NODE_STATES, VM_STATES, script
from scheduler_plugin.dashboard.core.visibility import ALL, VisibilityFilter
from scheduler_plugin.dashboard.web import STATES, page_files

DOCUMENT = Path(__file__).parents[4] / "docs" / "page.md"


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (VmRow("a/b", "a", problem="no spec", denied=(1, 0), waiting=True), "unhealthy"),
        (VmRow("a/b", "a", phase="Failed", migrating=True), "unhealthy"),
        (VmRow("a/b", "a", phase="Pending", waiting=True, denied=(1, 0)), "waiting"),
        (VmRow("a/b", "a", denied=(0, 1), trouble="its agent is silent", migrating=True), "denied"),
        (VmRow("a/b", "a", trouble="its agent is silent", migrating=True), "agent-problem"),
        (VmRow("a/b", "a", migrating=True), "migrating"),
        (VmRow("a/b", "a", phase="PreMigrating"), "migrating"),
        (VmRow("a/b", "a", phase="Running", state="denied"), CALM),
    ],
)
def test_vm_shows_worst_state(row: VmRow, state: str) -> None:
    assert vm_stated(row).state == state


def test_namespace_reader_sees_no_drain_reasons() -> None:
    node = NodeRow("n1", "", excess=(500, 0), stuck="bank/ledger may not move", crowded="bank/b could not grow")
    seen = [visibility.row(node_stated(node)) for visibility in (ALL, VisibilityFilter(frozenset({Scope("shop")})))]
    assert seen == [replace(node, state="cannot-drain"), replace(node, stuck="", crowded="", state="over-watermark")]


def test_page_uses_program_table() -> None:
    served = page_files()[STATES].body
    assert served == script()
    tables = dict(re.findall(r"export const (\w+) = (.*);", served.decode()))
    words = {name: [each["word"] for each in json.loads(table)] for name, table in tables.items()}
    assert words == {
        "VM_STATES": [each.word for each in VM_STATES],
        "NODE_STATES": [each.word for each in NODE_STATES],
    }


def test_the_document_has_every_state_in_its_order() -> None:
    section = DOCUMENT.read_text().partition("### States")[2].partition("Keys:")[0]
    said = re.findall(r"^\| ([\w-]+) \| (.+) \|$", section, re.MULTILINE)
    assert said[1:] == [(each.word, each.means) for each in (*VM_STATES, *NODE_STATES)]
