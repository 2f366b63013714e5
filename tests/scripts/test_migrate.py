"""``autoscale migrate``: a person sees the migration that he ordered, from its order to its end, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from io import StringIO

import httpx
import msgspec
import pytest
from rich.console import Console

from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, MIGRATIONS
from protocol.messages import ObjectName
from scripts.autoscale.demonstration.moves import Move
from scripts.autoscale.migrate import keeps_connections, migration_of, move_and_watch
from tests.fake_clock import FakeClock, settle
from tests.neonvm.in_process import InProcess
from tests.neonvm.runtime_fixture import definition

VM = ObjectName("default", "db")


class Hasty(InProcess):
    """An API server at which the next migration is deleted before its creator has an answer."""

    is_waiting = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        if self.is_waiting and request.method == "POST":
            self.is_waiting = False
            name = msgspec.json.decode(await answer.aread(), type=Json)
            path = MIGRATIONS.path("default", name_of(name).name)
            await super().handle_async_request(httpx.Request("DELETE", f"http://api{path}", headers=request.headers))
        return answer


class Person:
    """A command that has ordered a migration of a VM that has moved before."""

    def __init__(self, api: Hasty) -> None:
        self.api = api
        self.client = api.client()
        self.clock = FakeClock()
        self.screen = StringIO()
        self.looks: asyncio.Task[Move]

    async def moved_before(self) -> None:
        await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition("virtualmachinemigrations.yaml"))
        old = await self.client.create(MIGRATIONS, "default", migration_of(VM))
        await self._goes(name_of(old), {"phase": "Succeeded", "sourceNode": "n2", "targetNode": "n1"})

    async def orders(self) -> None:
        console = Console(file=self.screen, width=200)
        self.looks = asyncio.ensure_future(move_and_watch(self.client, VM, console, self.clock))
        await settle()

    async def ordered(self) -> ObjectName:
        found = [each for each in (await self.client.list(MIGRATIONS)).objects if not each.get("status")]
        return name_of(found[-1])

    async def goes(self, **status: object) -> None:
        await self._goes(await self.ordered(), dict(status))

    async def _goes(self, name: ObjectName, status: Json) -> None:
        await self.client.merge_patch(MIGRATIONS, name, {"status": status}, "status")
        await settle()

    async def hears(self) -> tuple[str, list[str]]:
        await self.clock.advance(0.2)
        async with asyncio.timeout(5):
            return (await self.looks).phase, self.screen.getvalue().splitlines()


@pytest.fixture
async def person() -> AsyncIterator[Person]:
    api = Hasty()
    made = Person(api)
    await made.moved_before()
    yield made
    made.looks.cancel()
    await asyncio.wait((made.looks,))
    await made.client.__aexit__()
    api.server.close()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_its_end_is_known_and_only_its_own_turns_are_said(person: Person, phase: str) -> None:
    await person.orders()
    await person.goes(phase=phase, sourceNode="n1", targetNode="n2")
    assert await person.hears() == (phase, ["db: ? ⇢ ? Pending", f"db: n1 ⇢ n2 {phase}"])


async def test_one_that_is_gone_before_anybody_has_seen_it_was_cancelled(person: Person) -> None:
    person.api.is_waiting = True
    await person.orders()
    phase, lines = await person.hears()
    assert (phase, lines[-1]) == ("Cancelled", "db: ? ⇢ ? Cancelled")


@pytest.mark.parametrize(
    ("vm", "keeps"),
    [
        ({"spec": {"extraNetwork": {"enable": True}}}, True),
        ({"spec": {}, "status": {"extraNetIP": "10.0.0.7"}}, True),
        ({"spec": {"extraNetwork": {"enable": False}}}, False),
    ],
)
def test_a_person_is_warned_where_connections_break(vm: Json, keeps: bool) -> None:
    assert keeps_connections(vm) is keeps
