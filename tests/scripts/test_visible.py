"""Texts of a cluster never steer the terminal that shows them."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import Static

from protocol.kubernetes.objects import Json
from scripts.autoscale import cluster_flags
from scripts.autoscale.terminal.printing import Output, serialised, show
from scripts.autoscale.terminal.text_screen import WatchApp
from scripts.autoscale.terminal.visible import visible, visible_lines
from scripts.autoscale.top.columns import VM_COLUMNS, Column, PlacedColumn, TableRow
from scripts.autoscale.top.row_list import RowList

HOSTILE = "idle\x1b[2J\x1b]0;owned\x07\x9b31m[red]all is well[/red]\r\u202e"


def steers(text: str) -> bool:
    return any(not (each.isprintable() or each in "\n\t") for each in text)


@given(st.text())
def test_nothing_that_is_shown_steers_a_terminal(text: str) -> None:
    controls = {*map(chr, (*range(0x20), *range(0x7F, 0xA0)))} - {"\t"}
    assert not controls & {*visible(text)}
    assert (len(visible(text)), visible(visible(text))) == (len(text), visible(text))
    assert not controls - {"\n"} & {*visible_lines(text)}


def test_sentences_are_printed_without_escape_sequences_and_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show([HOSTILE], None, Output.TEXT)
    shown = capsys.readouterr().out
    assert not steers(shown)
    assert "[red]all is well[/red]" in shown


@pytest.mark.parametrize("output", [Output.JSON, Output.YAML])
def test_script_output_is_escaped_reversibly(output: Output) -> None:
    made = serialised({"said": HOSTILE}, output)
    assert not {"\x1b", "\x9b", "\x07", "\r", "\u202e"} & {*made}
    assert (json.loads(made) if output is Output.JSON else yaml.safe_load(made)) == {"said": HOSTILE}


def test_a_vms_phase_is_no_markup() -> None:
    vm: Json = {"metadata": {"namespace": "shop", "name": "db"}, "status": {"phase": HOSTILE}}
    phase = cluster_flags._row(vm)[1]
    assert (steers(phase), "\\[red]" in phase) == (False, True)


async def test_the_screens_of_top_show_no_escape_sequence() -> None:
    async def read() -> list[str]:
        return [HOSTILE]

    app = WatchApp(HOSTILE, read, 3600.0)
    async with app.run_test() as pilot:
        await pilot.pause()
        shown = [str(each.content) for each in app.screen.query(Static)]
        rows = RowList(id="rows")
        await app.screen.mount(rows)
        column = Column("vm", "VM", 0)
        rows.show(
            [TableRow("shop/db", (HOSTILE, *[""] * len(VM_COLUMNS)))],
            [PlacedColumn(0, column, 40)],
            "vm",
            descending=False,
        )
        await pilot.pause()
        shown += [rows.render_line(y).text for y in range(2)]
    assert any("[red]all is well[/red]" in each for each in shown)
    assert not any(steers(each) for each in shown)
