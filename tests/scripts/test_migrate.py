"""``autoscale migrate``: a person sees the migration that he ordered, from its order to its end, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from io import StringIO

import httpx2 as httpx
import msgspec
import pytest
import typer
from rich.console import Console

from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, name_of, uid_of
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, MIGRATIONS
from protocol.messages import ObjectName
from protocol.units import Seconds
from scripts.autoscale.demonstration.moves import ObservedMove
from scripts.autoscale.migrate import ask_to_cancel, keeps_connections, migration_of, move_and_watch, parse_timeout
from tests.fake_clock import FakeClock, settle
from tests.neonvm.in_process import InProcess
from tests.neonvm.runtime_fixture import definition

VM = ObjectName("default", "db")


class Silence(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""


class Hasty(InProcess):
    """An API server at which the next migration is deleted before its creator has an answer."""

    is_waiting = False
    is_mute = False
    """Whether its watches show nothing."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_mute and "watch" in request.url.params:
            return httpx.Response(200, stream=Silence())
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
        self.looks: asyncio.Task[ObservedMove]
        self.stop = asyncio.Event()

    async def moved_before(self) -> None:
        await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition("virtualmachinemigrations.yaml"))
        old = await self.client.create(MIGRATIONS, "default", migration_of(VM))
        await self._goes(name_of(old), {"phase": "Succeeded", "sourceNode": "n2", "targetNode": "n1"})

    async def orders(self) -> None:
        limit = Seconds(60.0)
        watching = move_and_watch(self.client, VM, self.console, self.clock, limit, self.stop)
        self.looks = asyncio.ensure_future(watching)
        await settle()

    @property
    def console(self) -> Console:
        return Console(file=self.screen, width=200)

    @property
    def lines(self) -> list[str]:
        return self.screen.getvalue().splitlines()

    async def until(self, is_so: Callable[[], bool], step: float = 0.2) -> None:
        """Time passes until something is so: the API server takes real time to answer."""
        async with asyncio.timeout(10):
            while not is_so():
                await self.clock.advance(step)
                await settle()
                await asyncio.sleep(0.001)

    async def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * 5)):
            await self.clock.advance(0.2)
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
            return (await self.looks).phase, self.lines


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
async def test_only_own_migration_is_reported(person: Person, phase: str) -> None:
    await person.orders()
    await person.goes(phase=phase, sourceNode="n1", targetNode="n2")
    assert await person.hears() == (phase, ["db: Pending", f"db: n1 ⇢ n2 {phase}"])


async def test_migration_gone_unseen_counts_as_cancelled(person: Person) -> None:
    person.api.is_waiting = True
    await person.orders()
    phase, lines = await person.hears()
    assert (phase, lines[-1]) == ("Cancelled", "db: Cancelled")


async def test_migration_never_watched_times_out(person: Person) -> None:
    person.api.is_mute = True
    await person.orders()
    await person.until(person.looks.done, step=2.0)
    move = await person.looks
    assert (move.phase, move.name.startswith("db-"), move.is_under_way) == ("Pending", True, True)


NO_ROOM = "the target pod cannot be scheduled: 0/2 nodes are available: 2 Insufficient cpu."
UNPLACED = {"type": "Migrated", "status": "Unknown", "reason": "Unschedulable", "message": NO_ROOM}
NEAREST = "db-1 is waiting: no node has room for 3 vCPU and 4 GiB; closest is node-7, which lacks 1 vCPU"


async def test_what_it_waits_for_is_printed_at_once(person: Person) -> None:
    await person.orders()
    name = await person.ordered()
    await person.goes(phase="Pending", sourceNode="n1", conditions=[UNPLACED])
    await person.until(lambda: len(person.lines) > 1)
    assert person.lines[-1] == f"db: {NO_ROOM}"
    made = await person.client.get(MIGRATIONS, name)
    event: Json = {
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "VirtualMachineMigration", "name": "db-1", "uid": uid_of(made)},
        "reason": "MigrationWaits",
        "message": NEAREST,
    }
    await person.client.create(EVENTS, "default", event)
    await person.until(lambda: len(person.lines) > 2)
    await person.passes(2.0)
    assert person.lines[1:] == [f"db: {NO_ROOM}", f"db: {NEAREST}"]


async def test_forbidden_events_are_optional(person: Person) -> None:
    await person.orders()
    person.api.failing = "GET /api/v1/namespaces/default/events"
    await person.goes(phase="Pending", sourceNode="n1", conditions=[UNPLACED])
    await person.until(lambda: not person.api.failing)
    await person.passes(1.0)
    assert person.lines[1:] == [f"db: {NO_ROOM}"]


async def test_a_migration_without_a_controller_ends_the_command(person: Person) -> None:
    await person.orders()
    assert (await person.client.get(MIGRATIONS, await person.ordered()))["spec"]["completionTimeout"] == 60  # type: ignore[index]
    await person.until(lambda: len(person.lines) > 1)
    assert person.lines[1:] == ["db: no controller has picked up the migration yet: is neonvm-controller running?"]
    await person.until(person.looks.done, step=2.0)
    move = await person.looks
    assert (move.phase, move.is_under_way) == ("Pending", True)


async def test_one_who_may_not_list_migrations_is_told(person: Person) -> None:
    person.api.failing, person.api.fault = "GET /apis/vm.neon.tech/v1/virtualmachinemigrations", 403
    await person.orders()
    with pytest.raises(ApiRefusedError, match="403"):
        await person.looks


async def answered(person: Person, answer: bool) -> int:
    await person.orders()
    await person.goes(phase="Pending", sourceNode="n1", conditions=[UNPLACED])
    person.stop.set()
    await person.until(person.looks.done)

    async def says(question: str) -> bool:
        assert question == "Cancel the migration of default/db? [y/N] "
        return answer

    return await ask_to_cancel(person.client, await person.looks, person.console, person.clock, says)


async def test_ctrl_c_cancels_if_the_answer_is_yes(person: Person) -> None:
    assert (await answered(person, True), person.lines[-1]) == (1, "cancelled; default/db stays on its node")
    assert len((await person.client.list(MIGRATIONS)).objects) == 1


async def test_ctrl_c_leaves_the_migration_otherwise(person: Person) -> None:
    told = "the migration continues; autoscale migrate default/db --cancel cancels it"
    assert (await answered(person, False), person.lines[-1]) == (130, told)
    assert len((await person.client.list(MIGRATIONS)).objects) == 2


@pytest.mark.parametrize(
    ("phase", "status", "told"),
    [
        ("Succeeded", 0, "too late: the VM has moved"),
        ("Failed", 1, "cancelled; default/db stays on its node"),
        ("Running", 3, "the migration is being cancelled; its phase is still Running"),
    ],
)
async def test_a_cancel_tells_what_became_of_it(person: Person, phase: str, status: int, told: str) -> None:
    """A controller holds the object by a finalizer until the move is undone, or done."""
    await person.orders()
    name = await person.ordered()
    await person.client.merge_patch(MIGRATIONS, name, {"metadata": {"finalizers": ["vm.neon.tech/finalizer"]}})
    await person.goes(phase="Running", sourceNode="n1", targetNode="n2")
    person.stop.set()
    await person.until(person.looks.done)
    move = await person.looks
    cancels = asyncio.ensure_future(ask_to_cancel(person.client, move, person.console, person.clock, _yes))
    await settle()
    await person.client.merge_patch(MIGRATIONS, name, {"status": {"phase": phase}}, "status")
    await person.until(cancels.done, step=2.0)
    assert (await cancels, person.lines[-1]) == (status, told)


async def _yes(_: str) -> bool:
    return True


@pytest.mark.parametrize("given", ["soon", "0s", "25h"])
def test_a_time_that_makes_no_sense_is_refused(given: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse_timeout(given)
    assert refused.value.param_hint == "--timeout"
    assert parse_timeout("90s") == 90.0


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
