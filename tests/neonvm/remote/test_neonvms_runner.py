"""Our controller takes over a guest in a runner pod of NeonVM: its size and its resizes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2 as httpx
import msgspec
import pytest

from deploy.neonvm.access.connections import RunnerEndpoint
from deploy.neonvm.objects.boot_record import boot_record
from deploy.neonvm.ports import GuestError, GuestPhase, GuestState
from deploy.neonvm.remote.remote_guest import RemoteGuest, RemoteMachine
from deploy.neonvm.remote.runner_client import PollLimiter, RunnerClient
from protocol.kubernetes.objects import Json, child
from protocol.units import Bytes, MilliCpu
from protocol.vm_arguments import encode_dump
from tests.fake_clock import SleepingClock
from tests.neonvm.remote.asking import Asking
from tests.neonvm.sample_objects import virtual_machine

GI = 1024**3
PLACE = RunnerEndpoint("default/db-x", "uid", "10.0.0.9", 25183, 20183, is_open=True)


@dataclass
class NeonRunner:
    """Its HTTP API: with QmpScaling it stores the CPU that it is told, and reports it."""

    noted: object = 1
    orders: list[object] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/ready":
                return httpx.Response(200)
            case "/cpu_current":
                return httpx.Response(200, json={"VCPUs": self.noted})
            case "/cpu_change":
                self.noted = msgspec.json.decode(request.content, type=dict[str, Any])["vcpus"]
                self.orders.append(self.noted)
                return httpx.Response(200)
            case _:
                return httpx.Response(404)


@dataclass
class NeonQemu:
    """QEMU with slots for CPUs, the first of which boots with it. A ``lazy`` guest lets go of none.

    It has one client at a time, and others wait: ``clients`` are those that are there now, and were at most.
    """

    slots: int = 4
    added: list[int] = field(default_factory=list)
    lazy: bool = False
    run_state: str = "running"
    orders: list[tuple[str, str]] = field(default_factory=list)
    clients: tuple[int, int] = (0, 0)

    async def __aenter__(self) -> NeonQemu:
        now = self.clients[0] + 1
        self.clients = now, max(now, self.clients[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self.clients = self.clients[0] - 1, self.clients[1]

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        told = dict(arguments or {})
        if command == "query-memory-size-summary":
            return {"base-memory": GI, "plugged-memory": 0}
        if command in {"qom-set", "qom-get"}:
            return 0
        if command == "query-status":
            return {"status": self.run_state}
        if command == "query-hotpluggable-cpus":
            return [self._slot(core) for core in reversed(range(self.slots))]
        self.orders.append((command, str(told["id"])))
        if command == "device_add":
            assert told == self._slot(told["core-id"])["props"] | {"driver": "max-x86_64-cpu", "id": told["id"]}
            self.added.append(cast("int", told["core-id"]))
        elif not self.lazy:
            self.added.remove(int(str(told["id"]).removeprefix("/machine/peripheral/cpu")))
        return {}

    def _slot(self, core: object) -> dict[str, Any]:
        props = {"core-id": core, "thread-id": 0, "socket-id": 0}
        found: dict[str, Any] = {"props": props, "vcpus-count": 1, "type": "max-x86_64-cpu"}
        if core == 0:
            return found | {"qom-path": "/machine/unattached/device[0]"}
        return found | ({"qom-path": f"/machine/peripheral/cpu{core}"} if core in self.added else {})


def guest(runner: NeonRunner, qemu: NeonQemu, *, plugs: bool = True) -> RemoteGuest:
    client = RunnerClient(Asking(runner.answer), PLACE, PollLimiter())
    vm = virtual_machine()
    mode = "QmpScaling" if plugs else "SysfsScaling"
    words = ["runner", "-cpu-scaling-mode", mode, "-vmspec", encode_dump(child(vm, "spec")), "-vmstatus", "H4sI"]
    pod: Json = {"spec": {"containers": [{"name": "neonvm-runner", "command": words}]}}
    made = boot_record(pod)
    assert made is not None
    return RemoteGuest(client, lambda: cast("RemoteMachine", qemu), made, SleepingClock(), lambda: None)


def has(cpu: str) -> GuestState:
    return GuestState(GuestPhase.RUNNING, MilliCpu.parse(cpu), Bytes(GI))


async def test_cpus_are_plugged_before_runner_order() -> None:
    runner, qemu = NeonRunner(), NeonQemu()
    found = guest(runner, qemu)
    assert await found.state() == has("1")
    await found.set_cpu(MilliCpu(2500))
    assert await found.state() == has("2500m")
    await found.set_cpu(MilliCpu(2000))
    assert await found.state() == has("2")
    assert qemu.orders == [
        ("device_add", "cpu1"),
        ("device_add", "cpu2"),
        ("device_del", "/machine/peripheral/cpu2"),
    ]
    assert runner.orders == ["2500m", 2]


async def test_runner_cpu_is_capped_by_plugged() -> None:
    assert await guest(NeonRunner(noted="3500m"), NeonQemu(added=[1])).state() == has("2"), (
        "a growth that did not happen"
    )
    assert await guest(NeonRunner(noted="500m"), NeonQemu(added=[1])).state() == has("2"), "nor did a shrink"
    assert await guest(NeonRunner(noted="1500m"), NeonQemu(added=[1])).state() == has("1500m")


async def test_stuck_cpu_is_fault_with_real_size() -> None:
    runner, qemu = NeonRunner(noted=2), NeonQemu(added=[1], lazy=True)
    found = guest(runner, qemu)
    assert await found.state() == has("2")
    with pytest.raises(GuestError, match="2 CPUs are plugged in, 1 were requested"):
        await found.set_cpu(MilliCpu(1000))
    assert await found.state() == has("2")
    with pytest.raises(GuestError, match="4 CPUs are plugged in, 5 were requested"):
        await found.set_cpu(MilliCpu(5000))
    assert runner.orders == []


async def test_cpu_order_precedes_slow_memory() -> None:
    runner, qemu = NeonRunner(), NeonQemu()
    found = guest(runner, qemu)
    await found.state()
    async with asyncio.TaskGroup() as tasks:
        memory = tasks.create_task(found.set_memory(Bytes(2 * GI)))
        await asyncio.sleep(0)
        await found.set_cpu(MilliCpu(2000))
        assert (runner.orders, memory.done()) == ([2], False)
    assert qemu.clients == (0, 1)


async def test_receives_guest_of_original_controller() -> None:
    qemu = NeonQemu(run_state="inmigrate")
    found = guest(NeonRunner(), qemu)
    assert (await found.state()).phase is GuestPhase.RECEIVING
    qemu.run_state = "running"
    assert (await found.state()).phase is GuestPhase.RUNNING


async def test_with_sysfs_scaling_its_runner_does_it_all() -> None:
    runner, qemu = NeonRunner(noted=3), NeonQemu()
    found = guest(runner, qemu, plugs=False)
    assert await found.state() == has("3")
    await found.set_cpu(MilliCpu(2000))
    assert (await found.state(), qemu.orders) == (has("2"), [])


async def test_missing_cpu_list_is_fault() -> None:
    class Silent(NeonQemu):
        async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
            return {} if command == "query-hotpluggable-cpus" else await super().call(command, arguments)

    with pytest.raises(GuestError, match="invalid CPU list from its QEMU"):
        await guest(NeonRunner(), Silent()).state()
