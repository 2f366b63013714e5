"""Fakes at the ports of a runner: they do as a test says, without time or network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Self

from msgspec.structs import replace

from agent.assignments import Assignment
from agent.core.events import Fault
from agent.core.guest import CpuSeconds, GuestSample
from agent.ports import ConflictError, PortError
from agent.runner import Ports, Runner
from agent.telemetry import LOG, growth_times
from protocol.codec import PluginResponseView
from protocol.guest.database import DatabaseState
from protocol.messages import AgentRequest, ObjectName
from protocol.names import ANNOTATION_SLEEP
from protocol.units import Bytes, ComputeUnit, Resources, Seconds
from protocol.virtual_machine import Bounds, VirtualMachine
from tests.agent.core.story import GIB, POLICY, UNIT, cu
from tests.agent.fake_monitor import FakeMonitor
from tests.fake_clock import FakeClock, settle

ASSIGNMENT = Assignment(ObjectName("default", "vm-1"), ObjectName("default", "vm-1-pod"))


_OF_EVERY_RECORD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}


class Lines(logging.Handler):
    """Log lines of the agent within ``with``."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str, dict[str, object]]] = []
        self.heard = asyncio.Event()

    def __enter__(self) -> Self:
        LOG.addHandler(self)
        self._level, LOG.level = LOG.level, logging.INFO
        return self

    def __exit__(self, *_: object) -> None:
        LOG.removeHandler(self)
        LOG.level = self._level

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        self.lines.append((record.levelno, record.getMessage(), fields))
        self.heard.set()

    async def says(self, *any_of: str) -> None:
        """Returns once one of these messages has been said."""
        while not set(any_of) & set(self.messages):
            self.heard.clear()
            await self.heard.wait()

    @property
    def messages(self) -> list[str]:
        """The messages, in order."""
        return [message for _, message, _ in self.lines]


@dataclass
class FakeGuest:
    """A guest of which this many cores are busy. Its exporter may fail with ``error``, or serve another ``page``.

    A scrape ``takes`` seconds.
    """

    clock: FakeClock
    cores: float = 0.0
    error: PortError | None = None
    page: GuestSample | None = None
    oom_kills: float = 0.0
    quiet: float | None = None
    takes: float = 0.0
    looks: int = 0
    looked_at: list[float] = field(default_factory=list)
    closed: int = 0
    _busy: float = 0.0
    _at: float = 0.0

    async def scrape(self) -> GuestSample:
        """See ``MetricsSource``."""
        self.looked_at.append(self.clock.now())
        self.looks += 1
        if self.takes:
            await self.clock.sleep(Seconds(self.takes))
        now = self.clock.now()
        self._busy, self._at = self._busy + self.cores * (now - self._at), now
        if self.error is not None:
            raise self.error
        if self.page is not None:
            return self.page
        memory = Bytes(64 * GIB)
        return GuestSample(
            cpus={"0": CpuSeconds(self._busy)},
            load1=self.cores,
            mem_total=memory,
            mem_available=memory,
            oom_kills=self.oom_kills,
            quiet=self.quiet,
        )

    def close(self) -> None:
        """See ``MetricsSource``."""
        self.closed += 1


@dataclass
class FakeDatabase:
    """A database that says ``view``; or its guest fails with ``error``."""

    view: DatabaseState = field(default_factory=lambda: DatabaseState(is_standby=False))
    error: PortError | None = None

    async def look(self) -> DatabaseState:
        """See ``DatabaseSource``."""
        if self.error is not None:
            raise self.error
        return self.view


@dataclass
class FakeScheduler:
    """Grants what does not exceed ``room``; or fails with the next of ``errors``."""

    room: Resources = field(default_factory=lambda: cu(8))
    unit: ComputeUnit = UNIT
    migrate: bool = False
    errors: list[PortError] = field(default_factory=list)
    requests: list[AgentRequest] = field(default_factory=list)

    async def ask(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        """See ``SchedulerClient``."""
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        return PluginResponseView(request.resources.at_most(self.room), self.unit, self.migrate)

    @property
    def asked(self) -> list[Resources]:
        """The sizes that were asked for."""
        return [request.resources for request in self.requests]


class FakeVmApi:
    """One VirtualMachine object; calls fail with the next of their ``errors``.

    A webhook changes sizes to what ``stores`` returns, and drops orders to sleep unless ``stores_orders``.
    """

    def __init__(self) -> None:
        self.found = VirtualMachine(
            name=ASSIGNMENT.vm,
            uid="u",
            resource_version="1",
            labels={},
            annotations={},
            bounds=Bounds(cu(1), cu(8)),
            use=cu(1),
            actual=cu(1),
            slot_size=Bytes(GIB),
            pod_name=ASSIGNMENT.pod.name,
            node="node-1",
            pod_ip=None,
            phase="Running",
            enabled=True,
            permit=None,
        )
        self.get_errors: list[PortError] = []
        self.patch_errors: list[PortError] = []
        self.patched: list[tuple[Resources, int]] = []
        self.ordered: list[tuple[str, int]] = []
        self.order_errors: list[PortError] = []
        self.tell_errors: list[PortError] = []
        self.told: list[tuple[str, str]] = []
        self.gets = 0
        self.stores: Callable[[Resources], Resources] = lambda use: use
        self.stores_orders = True
        self._changes: asyncio.Queue[VirtualMachine | PortError | None] = asyncio.Queue()

    async def get(self) -> VirtualMachine:
        """See ``VmApi``."""
        self.gets += 1
        if self.get_errors:
            raise self.get_errors.pop(0)
        return self.found

    async def watch(self) -> AsyncIterator[VirtualMachine]:
        """See ``VmApi``."""
        while True:
            change = await self._changes.get()
            if change is None:
                return
            if isinstance(change, PortError):
                raise change
            yield change

    async def patch(self, use: Resources, slot_size: Bytes, base: int) -> VirtualMachine:
        """See ``VmApi``."""
        self.patched.append((use, base))
        if self.patch_errors:
            raise self.patch_errors.pop(0)
        if base != int(self.found.resource_version):
            raise ConflictError(Fault.VM_API, "changed")
        use = self.stores(use)
        self.change(shown=False, use=use, actual=use)
        return self.found

    async def order_sleep(self, order: str, base: int) -> VirtualMachine:
        """See ``VmApi``."""
        self.ordered.append((order, base))
        if self.order_errors:
            raise self.order_errors.pop(0)
        if base != int(self.found.resource_version):
            raise ConflictError(Fault.VM_API, "changed")
        orders = {ANNOTATION_SLEEP: order} if self.stores_orders else {}
        self.change(shown=False, annotations={**self.found.annotations, **orders})
        return self.found

    async def write_event(self, reason: str, note: str, wall: float) -> None:
        """See ``VmApi``."""
        self.told.append((reason, note))
        if self.tell_errors:
            raise self.tell_errors.pop(0)

    def restore(self, kept: VirtualMachine) -> None:
        """The cluster's store is an older one, and its server ended the watch."""
        self.found = kept
        self._changes.put_nowait(None)

    def change(self, *, shown: bool = True, **fields: object) -> None:
        """Change the object as another client; ``shown``: the watch delivers it."""
        version = str(int(self.found.resource_version) + 1)
        self.found = replace(self.found, resource_version=version, **fields)
        if shown:
            self._changes.put_nowait(self.found)

    def end_watch(self, error: PortError | None = None) -> None:
        """The watch ends, in peace or with ``error``."""
        self._changes.put_nowait(error)


@dataclass
class RunnerFixture:
    """One runner, and fakes at all of its ports."""

    clock: FakeClock = field(default_factory=lambda: FakeClock(start=0.0, jitter=0.0))
    scheduler: FakeScheduler = field(default_factory=FakeScheduler)
    vm_api: FakeVmApi = field(default_factory=FakeVmApi)
    log: Lines = field(default_factory=Lines)
    monitor: FakeMonitor | None = None

    def __post_init__(self) -> None:
        self.guest = FakeGuest(self.clock)
        self.database, self.growths = FakeDatabase(), growth_times()
        connect = None if self.monitor is None else self.monitor.connect
        ports = Ports(self.guest, self.scheduler, self.vm_api, self.database.look, self.clock, connect)
        self.runner = Runner(ASSIGNMENT, ports, POLICY, 1, self.growths)

    async def __aenter__(self) -> Self:
        self.log.__enter__()
        self.task = asyncio.create_task(self.runner.run())
        await settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.log.__exit__()
