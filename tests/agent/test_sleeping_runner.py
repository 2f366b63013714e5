"""The life of an agent whose VM sleeps: nothing reaches the guest, and the permit comes and goes."""

from __future__ import annotations

from msgspec.structs import replace

from agent.core.events import Fault
from agent.ports import ConflictError, PortError
from protocol.guest.monitor_messages import UpscaleConfirmation
from protocol.guest.sleep import SleepReport, SleepState
from protocol.names import ANNOTATION_CONFIG
from protocol.running_machine import RunningMachine
from protocol.units import ZERO, Bytes
from tests.agent.core.story import GIB, cu
from tests.agent.fake_monitor import FakeMonitor
from tests.agent.fake_ports import RunnerFixture

SLEEPY = {ANNOTATION_CONFIG: "sleep: {after: 60s}"}
MACHINE = RunningMachine(cu(8).cpu, Bytes(GIB), cu(8).mem)


def sleeper(monitor: FakeMonitor | None = None) -> RunnerFixture:
    """A VM that may sleep, and whose database is quiet."""
    fixture = RunnerFixture(monitor=monitor)
    fixture.guest.quiet = 1000.0
    fixture.vm_api.found = replace(fixture.vm_api.found, annotations=SLEEPY, machine=MACHINE)
    return fixture


def shows(fixture: RunnerFixture, phase: str, state: SleepState, message: str = "") -> None:
    """The controller writes the status."""
    order = fixture.vm_api.ordered[-1][0] if fixture.vm_api.ordered else "by hand"
    actual = fixture.vm_api.found.use if phase == "Running" else None
    fixture.vm_api.change(phase=phase, actual=actual, sleep=SleepReport(order, state, message=message))


async def fall_asleep(fixture: RunnerFixture) -> None:
    await fixture.clock.advance(62.0)
    shows(fixture, "Asleep", SleepState.ASLEEP)
    await fixture.clock.advance(1.0)


async def test_quiet_vm_is_ordered_to_sleep_once() -> None:
    async with sleeper() as fixture:
        await fixture.clock.advance(59.0)
        assert fixture.vm_api.ordered == []
        await fixture.clock.advance(60.0)
        assert fixture.vm_api.ordered == [("2026-01-01T00:01:00.000000Z", 1)]
        assert fixture.log.messages == ["permit received", "ordered to sleep"]


async def test_guest_asleep_is_not_connected_to() -> None:
    monitor = FakeMonitor()
    async with sleeper(monitor) as fixture:
        await fixture.clock.advance(1.2)
        await monitor.says(UpscaleConfirmation(2))
        await fixture.clock.advance(9.0)
        assert (monitor.connections, fixture.guest.closed) == (1, 0)
        await fall_asleep(fixture)
        assert (fixture.guest.closed, fixture.scheduler.asked[-1]) == (1, ZERO)
        looks = fixture.guest.looks
        await fixture.clock.advance(3600.0)
        assert (fixture.guest.looks, monitor.connections) == (looks, 1)
        assert set(fixture.scheduler.asked[-200:]) == {ZERO}, "a heartbeat as ever"
        assert [message for message in fixture.log.messages if "permit" not in message] == [
            *("connected to the guest's monitor", "ordered to sleep", "asleep")
        ]
        shows(fixture, "Waking", SleepState.WAKING, "10.1.2.3")
        await fixture.clock.advance(0.0)
        assert fixture.scheduler.asked[-1] == cu(1)
        await fixture.clock.advance(5.0)
        assert (fixture.guest.looks, monitor.connections) == (looks, 1)
        shows(fixture, "Running", SleepState.AWAKE, "10.1.2.3")
        await fixture.clock.advance(5.0)
        assert (fixture.guest.looks, monitor.connections) == (looks + 6, 2)
        assert fixture.vm_api.patched == []


async def test_agent_that_begins_while_asleep_connects_to_nothing() -> None:
    monitor = FakeMonitor()
    fixture = sleeper(monitor)
    shows(fixture, "Asleep", SleepState.ASLEEP)
    async with fixture:
        await fixture.clock.advance(60.0)
        assert (fixture.guest.looks, monitor.connections, set(fixture.scheduler.asked)) == (0, 0, {ZERO})


async def test_refused_order_waits() -> None:
    async with sleeper() as fixture:
        await fixture.clock.advance(61.0)
        shows(fixture, "Running", SleepState.REFUSED, "a query runs")
        await fixture.clock.advance(59.0)
        assert len(fixture.vm_api.ordered) == 1
        assert fixture.log.lines[-1][1:] == (
            "the guest refused to sleep",
            {"vm": "default/vm-1", "reason": "a query runs"},
        )
        await fixture.clock.advance(2.0)
        assert len(fixture.vm_api.ordered) == 2


async def test_order_that_fails_is_tried_again() -> None:
    async with sleeper() as fixture:
        fixture.vm_api.order_errors = [PortError(Fault.NETWORK, "away"), ConflictError(Fault.VM_API, "changed")]
        await fixture.clock.advance(64.0)
        assert len(fixture.vm_api.ordered) == 1
        assert fixture.log.messages[-1] == "cannot write the order to sleep"
        await fixture.clock.advance(30.0)
        assert [text for text, _ in fixture.vm_api.ordered] == [
            "2026-01-01T00:01:00.000000Z",
            "2026-01-01T00:01:05.000000Z",
            "2026-01-01T00:01:15.000000Z",
        ]


async def test_order_dropped_by_webhook_backs_off() -> None:
    async with sleeper() as fixture:
        fixture.vm_api.stores_orders = False
        await fixture.clock.advance(80.0)
        assert [text for text, _ in fixture.vm_api.ordered] == [
            "2026-01-01T00:01:00.000000Z",
            "2026-01-01T00:01:05.000000Z",
            "2026-01-01T00:01:15.000000Z",
        ]
        assert fixture.log.lines[-1][2]["reason"] == (
            "the API server did not store the order; an admission webhook may have changed it"
        )


async def test_window_keeps_awake_to_the_minute() -> None:
    """The clock of the fakes begins on a Thursday at midnight, UTC: one in the afternoon in Tongatapu."""
    window = "Thu 12:00-13:05 Pacific/Tongatapu"
    async with sleeper() as fixture:
        fixture.vm_api.change(annotations={ANNOTATION_CONFIG: f"sleep: {{after: 60s, keepAwake: [{window}]}}"})
        await fixture.clock.advance(299.0)
        assert fixture.vm_api.ordered == []
        assert fixture.runner.state.sleep.window == window
        await fixture.clock.advance(2.0)
        assert len(fixture.vm_api.ordered) == 1


async def test_window_of_new_policy_counts_at_once() -> None:
    async with sleeper() as fixture:
        await fixture.clock.advance(59.5)
        fixture.vm_api.change(annotations={ANNOTATION_CONFIG: "sleep: {after: 60s, keepAwake: [Thu 00:00-24:00 UTC]}"})
        await fixture.clock.advance(100.0)
        assert fixture.vm_api.ordered == []


async def test_wake_that_nobody_used_becomes_an_event() -> None:
    async with sleeper() as fixture:
        await fall_asleep(fixture)
        await fixture.clock.advance(600.0)
        who = "10.1.2.3:4711 opened a connection"
        for phase, state in (("Waking", SleepState.WAKING), ("Running", SleepState.AWAKE)):
            shows(fixture, phase, state, who)
            await fixture.clock.advance(0.5)
        await fixture.clock.advance(70.0)
        assert len(fixture.vm_api.ordered) == 2
        ((reason, note),) = fixture.vm_api.told
        assert reason == "WokenForNothing"
        assert note.startswith(f"woken for nothing: {who}, then no client activity for 60 s")
        shows(fixture, "Running", SleepState.REFUSED, "a query runs")
        await fixture.clock.advance(900.0)
        assert (len(fixture.vm_api.ordered) > 2, len(fixture.vm_api.told)) == (True, 1), "once for each wake"
