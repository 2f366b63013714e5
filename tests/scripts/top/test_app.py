"""The terminal application: one story for each thing a person does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from scripts.autoscale.terminal.text_screen import TextScreen
from scripts.autoscale.top.app import TopApp
from scripts.autoscale.top.columns import TableRow
from scripts.autoscale.top.row_list import RowList
from scripts.autoscale.top.rows import vm_row
from tests.pod_databases import pod_database
from tests.scripts.top.fleet_fixture import FEW, Scene, many

pytestmark = pytest.mark.terminal


class Person:
    def __init__(self, scene: Scene, app: TopApp, pilot: Pilot[None]) -> None:
        self.scene, self.app, self.pilot = scene, app, pilot

    async def types(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def waits(self) -> None:
        """Wait until the next screen is drawn."""
        await self.app.refresh_once()
        await self.pilot.pause()

    def reads(self) -> list[str]:
        """The screen as text, as a terminal shows it."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    def names(self) -> list[str]:
        return [row.name for row in self.app.screen_stack[0].query_one(RowList).rows]


@asynccontextmanager
async def looking(vms: Sequence[TableRow] = FEW, width: int = 120) -> AsyncIterator[Person]:
    scene = Scene(vms)
    app = TopApp(scene, every=3600.0)
    async with app.run_test(size=(width, 24)) as pilot:
        person = Person(scene, app, pilot)
        await person.waits()
        yield person


@pytest.mark.parametrize("width", [80, 120, 150, 250])
async def test_names_and_numbers_are_whole_at_any_width(width: int) -> None:
    async with looking(width=width) as person:
        screen = "\n".join(person.reads())
        for row in FEW:
            assert {row.cells[0], row.cells[3], row.cells[5]} <= set(screen.replace("-\n", " ").split())
        assert all(len(each) <= width for each in person.reads())
        assert screen.count("…") <= len(FEW)


async def test_a_person_sorts_filters_and_looks_at_nodes() -> None:
    async with looking() as person:
        assert person.names()[0] == "default/a-database-with-a-long-name"
        await person.types("r")
        assert person.names()[0] == "shop/orders-10"
        await person.types("slash", *"orders", "enter")
        assert person.names() == ["shop/orders-10", "shop/orders-2"]
        assert "2 of 4 databases   filter: orders" in person.reads()[0]
        await person.types("escape", "greater_than_sign")
        assert (len(person.names()), person.app.view.sorted_by) == (4, "state")
        await person.types("n")
        assert person.names() == ["node-1", "node-2"]
        await person.types("down", "enter")
        assert person.names() == ["shop/orders-10"]


async def test_only_visible_of_ten_thousand_vms_are_queried() -> None:
    async with looking(many(10_000)) as person:
        assert len(person.names()) == 10_000
        await person.types("end")
        await person.waits()
        assert any("db-9999" in line for line in person.reads())
        asked = person.scene.asked[-1]
        assert (asked[-1], len(asked) < 24) == ("default/db-9999", True)


async def test_cursor_stays_at_its_vm() -> None:
    async with looking() as person:
        await person.types("end")
        person.scene.seen = replace(person.scene.seen, vms=(*many(3), *FEW))
        await person.waits()
        chosen = person.app.query_one(RowList).chosen
        assert (len(person.names()), chosen and chosen.name) == (7, "shop/orders-10")


async def test_enter_explains_live() -> None:
    async with looking() as person:
        await person.types("down", "enter")
        assert any("default/new has 2 vCPU." in line for line in person.reads())
        person.scene.told = ["default/new has [3] vCPU."]
        screen = person.app.screen
        assert isinstance(screen, TextScreen)
        await screen.update_text()
        await person.pilot.pause()
        assert any("default/new has [3] vCPU." in line for line in person.reads())
        await person.types("escape")
        assert len(person.app.screen_stack) == 1


async def test_a_vm_is_migrated_only_after_a_yes() -> None:
    async with looking() as person:
        await person.types("m")
        assert any("Migrate default/a-database-with-a-long-name?" in line for line in person.reads())
        await person.types("n")
        assert person.scene.moved == []
        await person.types("m", "enter")
        assert person.scene.moved == []
        await person.types("m", "y")
        assert person.scene.moved == ["default/a-database-with-a-long-name"]
        assert any("Created migration m-1" in line for line in person.reads())


async def test_a_pod_is_not_migrated() -> None:
    async with looking([vm_row(pod_database(), {}, {}, None)]) as person:
        assert person.names() == ["default/pod/pg-1"]
        await person.types("m")
        said = "default/pod/pg-1 is a pod: it is resized in place and does not migrate."
        assert (said in person.reads(), len(person.app.screen_stack), person.scene.moved) == (True, 1, [])


async def test_scheduler_outage_is_shown_until_it_ends() -> None:
    async with looking() as person:
        person.scene.seen = replace(person.scene.seen, troubles=("The scheduler does not respond.",))
        await person.waits()
        assert "The scheduler does not respond." in person.reads()
        assert len(person.names()) == 4
        person.scene.seen = replace(person.scene.seen, troubles=())
        await person.waits()
        assert "The scheduler does not respond." not in person.reads()


async def test_help_shows_every_key_and_q_quits() -> None:
    async with looking() as person:
        await person.types("question_mark")
        await person.pilot.pause()
        assert any("migrate the VM, after a confirmation" in line for line in person.reads())
        await person.types("escape", "q")
    assert person.app.return_code == 0
