"""``autoscale sleep`` and ``autoscale wake``: an order, what the controller makes of it, and one line about its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from io import StringIO

import pytest
from rich.console import Console

from protocol.guest.sleep import sleep_order
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.units import Seconds
from scripts.autoscale.site import SiteError
from scripts.autoscale.sleep.command import Orders
from scripts.autoscale.sleep.outcomes import fell_asleep, progress, woke
from scripts.autoscale.terminal.printing import Output
from tests.fake_clock import FakeClock, settle
from tests.neonvm.in_process import InProcess
from tests.neonvm.runtime_fixture import definition

VM = ObjectName("default", "db-1")
LIMIT = Seconds(60.0)
ORDERED_AT = FakeClock().wall()


def vm(**spec: object) -> Json:
    labels = {"autoscaling.neon.tech/enabled": "true"}
    guest = {
        "cpus": {"min": 1, "use": 1, "max": 2},
        "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "use": 1, "max": 2},
    }
    return {
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "db-1", "namespace": "default", "labels": labels},
        "spec": {"guest": guest, "extraNetwork": {"enable": True}, **spec},
    }


class Person:
    """A person with one VM, whose controller is the test."""

    def __init__(self) -> None:
        self.api = InProcess()
        self.client = self.api.client()
        self.clock = FakeClock()
        self.screen = StringIO()
        self.orders = Orders(self.client, VM, self.clock, Console(file=self.screen, width=300))
        self.task: asyncio.Task[int] | None = None

    async def starts(self, phase: str, **sleep: object) -> None:
        await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition("virtualmachines.yaml"))
        await self.client.create(VIRTUAL_MACHINES, "default", vm())
        await self.reports(phase, **sleep)

    async def reports(self, phase: str, **sleep: object) -> None:
        status: Json = {"phase": phase, **({"sleep": sleep} if sleep else {})}
        await self.client.merge_patch(VIRTUAL_MACHINES, VM, {"status": status}, "status")

    async def asks(self, command: Coroutine[object, object, int]) -> None:
        self.task = asyncio.ensure_future(command)
        await settle()

    async def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            await self.clock.advance(0.1)
            await settle()

    async def ends(self) -> int:
        assert self.task is not None
        async with asyncio.timeout(10):
            while not self.task.done():
                await self.passes(0.1)
                await asyncio.sleep(0.001)
        return await self.task

    async def order(self) -> str:
        return sleep_order(await self.client.get(VIRTUAL_MACHINES, VM))


@pytest.fixture
async def person() -> AsyncIterator[Person]:
    made = Person()
    yield made
    if made.task is not None:
        made.task.cancel()
        await asyncio.wait((made.task,))
    await made.client.__aexit__()
    made.api.server.close()


@pytest.mark.parametrize(
    ("report", "status", "line"),
    [
        (
            {"state": "Asleep", "sessions": 3, "saved": 190_840_832},
            0,
            "db-1 is asleep: 3 sessions open, 182 MiB saved, took 0.",
        ),
        (
            {"state": "Refused", "message": "a session is in a transaction"},
            1,
            "db-1 refused to sleep: a session is in a transaction",
        ),
        ({"state": "Awake", "message": "10.1.2.3 sent"}, 0, "db-1 fell asleep and was woken again: 10.1.2.3 sent"),
    ],
)
async def test_sleep_prints_the_end(
    person: Person, capsys: pytest.CaptureFixture[str], report: dict[str, object], status: int, line: str
) -> None:
    """The order has a text; the controller's report on it ends the command."""
    await person.starts("Running")
    await person.asks(person.orders.sleep(LIMIT, Output.TEXT))
    await person.passes(0.4)
    order = await person.order()
    await person.reports("Asleep" if report["state"] == "Asleep" else "Running", order=order, **report)
    assert await person.ends() == status
    assert capsys.readouterr().out.startswith(line)
    assert order == micro_timestamp(ORDERED_AT)


async def test_sleep_ignores_earlier_reports(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    """A report about another order says nothing about this one; without an answer the time-out says who is missing."""
    await person.starts("Running", order="earlier", state="Refused", message="busy")
    await person.asks(person.orders.sleep(Seconds(2.0), Output.TEXT))
    assert await person.ends() == 3
    assert "no response from neonvm-controller within 2 s" in person.screen.getvalue()
    assert "remove it with: autoscale wake default/db-1" in person.screen.getvalue()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("status", "what"),
    [
        ({"phase": "Scaling"}, "resized"),
        ({"conditions": [{"type": "ResizeStalled", "status": "True"}]}, "resized"),
        ({"phase": "PreMigrating"}, "migrated"),
        ({"phase": "Migrating"}, "migrated"),
    ],
)
async def test_order_waits_for_resize_and_migration(person: Person, status: Json, what: str) -> None:
    """A guest may take minutes to give memory back; the command says so if its time is over before that."""
    await person.starts("Running")
    await person.client.merge_patch(VIRTUAL_MACHINES, VM, {"status": status}, "status")
    await person.asks(person.orders.sleep(Seconds(2.0), Output.TEXT))
    assert await person.ends() == 3
    assert person.screen.getvalue().splitlines()[-1] == (
        f"db-1 is still being {what} after 2 s, and sleeps after that. "
        "The order remains; remove it with: autoscale wake default/db-1"
    )
    assert await person.order() == micro_timestamp(ORDERED_AT)


async def test_sleep_without_waiting(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    """The order is written, and its end left to others; JSON has the state that the order met."""
    await person.starts("Running")
    assert await person.orders.sleep(None, Output.JSON) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["vm"], fields["phase"], fields["state"], fields["sessions"]) == (
        "default/db-1",
        "Running",
        None,
        None,
    )
    assert await person.order() != ""


async def test_sleeper_is_not_ordered_again(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    """An order to a sleeper would make it sleep again after its waking."""
    await person.starts("Asleep", order="a", state="Asleep", since="2026-01-01T02:10:00Z")
    assert await person.orders.sleep(LIMIT, Output.TEXT) == 0
    assert (capsys.readouterr().out, await person.order()) == (
        "db-1 is already asleep since 2026-01-01T02:10:00Z\n",
        "",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metadata": {"labels": None}}, "not enabled for autoscaling"),
        ({"spec": {"extraNetwork": None}}, "has no flat-network address"),
        ({"status": {"phase": "Pending"}}, "is Pending, not Running"),
    ],
)
async def test_sleep_is_refused_at_once(person: Person, change: Json, reason: str) -> None:
    await person.starts("Running")
    await person.client.merge_patch(VIRTUAL_MACHINES, VM, change, "status" if "status" in change else "")
    with pytest.raises(SiteError, match=reason):
        await person.orders.sleep(LIMIT, Output.TEXT)
    assert await person.order() == ""


async def test_deleted_vm_ends_the_wait(person: Person) -> None:
    await person.starts("Running")
    await person.asks(person.orders.sleep(LIMIT, Output.TEXT))
    await person.client.delete(VIRTUAL_MACHINES, VM)
    with pytest.raises(SiteError, match="default/db-1 has been deleted"):
        await person.ends()


async def test_forbidden_look_ends_the_wait(person: Person) -> None:
    """A refusal by the API server, other than a missing object, is printed as it is."""
    await person.starts("Running")
    await person.asks(person.orders.sleep(LIMIT, Output.TEXT))
    person.api.failing, person.api.fault = "GET /apis/vm.neon.tech/v1/namespaces/default/virtualmachines/db-1", 403
    with pytest.raises(Exception, match="403"):
        await person.ends()


async def test_wake_removes_the_order(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    """The controller wakes the VM once its annotation is gone; its own figure is printed."""
    await person.starts("Running")
    await person.orders.sleep(None, Output.TEXT)
    order = await person.order()
    await person.reports("Asleep", order=order, state="Asleep")
    await person.asks(person.orders.wake(LIMIT, Output.TEXT))
    await person.passes(0.2)
    assert await person.order() == ""
    await person.reports("Waking", order=order, state="Waking", message="no room on node-1")
    await person.passes(0.2)
    await person.reports("Running", order=order, state="Waking", message="no room on node-1")
    await person.passes(0.2)
    assert person.task is not None
    assert not person.task.done()
    await person.reports("Running", order=order, state="Awake", seconds=0.31)
    assert await person.ends() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "db-1 is awake after 0.31 s"


async def test_wake_waits_no_longer_than_asked(person: Person) -> None:
    await person.starts("Waking", order="a", state="Waking")
    await person.asks(person.orders.wake(Seconds(1.0), Output.TEXT))
    assert await person.ends() == 3
    assert "db-1 is still Waking after 1 s; for the reason: autoscale explain default/db-1" in person.screen.getvalue()


async def test_wake_without_waiting(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    await person.starts("Asleep", order="a", state="Asleep")
    assert (await person.orders.wake(None, Output.TEXT), capsys.readouterr().out) == (
        0,
        "ordered db-1 to wake\n",
    )


async def test_wake_of_a_running_vm(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    """An order that nothing has answered is withdrawn; without one there is nothing to do."""
    await person.starts("Running")
    assert await person.orders.wake(LIMIT, Output.TEXT) == 0
    await person.orders.sleep(None, Output.TEXT)
    assert await person.orders.wake(LIMIT, Output.TEXT) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[2]) == ("db-1 is already awake", "db-1 is awake; removed its pending order to sleep")
    assert await person.order() == ""


def test_a_replaced_order_has_ended() -> None:
    """The agent, or another person, wrote after this one: its order will not be answered."""
    other: Json = {"metadata": {"name": "db-1", "annotations": {"autoscaling.neon.tech/sleep": "b"}}}
    assert (outcome := fell_asleep(other, "a", Seconds(1.0))) is not None
    assert (outcome.is_done, outcome.line.endswith("removed or replaced")) == (False, True)


def test_an_order_on_its_way_has_no_end() -> None:
    on_its_way: Json = {"metadata": {"annotations": {"autoscaling.neon.tech/sleep": "a"}}, "status": {}}
    assert fell_asleep(on_its_way, "a", Seconds(1.0)) is None
    assert fell_asleep({"status": {"phase": "Running", "sleep": {"order": "a"}}}, "a", Seconds(1.0)) is None


def test_a_lost_image_is_told() -> None:
    status: Json = {"phase": "Running", "sleep": {"state": "Restarted", "message": "the image is damaged"}}
    assert (outcome := woke({"metadata": {"name": "db-1"}, "status": status}, Seconds(12.0))) is not None
    assert outcome.line == "db-1 booted from its disk and lost its sessions: the image is damaged"
    running = woke({"metadata": {"name": "db-1"}, "status": {"phase": "Running"}}, Seconds(12.4))
    assert running is not None
    assert running.line == "db-1 is awake after 12 s"


def test_progress_has_the_reason_of_a_waking() -> None:
    waking: Json = {"phase": "Waking", "sleep": {"state": "Waking", "message": "10.1.2.3 sent to port 5432"}}
    assert progress({"metadata": {"name": "db-1"}, "status": waking}) == "db-1 is Waking: 10.1.2.3 sent to port 5432"
    assert progress({"metadata": {"name": "db-1"}}) == "db-1 is new"
