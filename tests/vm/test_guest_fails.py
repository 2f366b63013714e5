"""A real guest that fails ends its pod within a second, and the VM's event says why."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.kube.informer import Informer, ObjectChange
from deploy.local.cluster.content import register_node
from deploy.local.cluster.runtime import Runtime
from deploy.local.kubelet.node_object import NodeSpec
from deploy.local.kubelet.sandbox import NodeDependencies
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.chooser import NetworkKind, choose_network
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.accelerator import KVM_DEVICE, Accelerator, emulation, kvm
from deploy.neonvm.qemu.boot_trial import BootTrial
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.qemu_command import launcher, trial_command
from deploy.neonvm.qemu.qemu_process import Qemu
from protocol.kubernetes.objects import Json, items, text
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, PODS, VIRTUAL_MACHINES
from protocol.runtime.clock import SystemClock
from protocol.units import Resources
from tests.neonvm.in_process import InProcess
from tests.neonvm.runtime_fixture import FakeExtender, definition
from tests.slowness import Slowness
from tests.vm.guests import BOOT_SECONDS, cluster_of, machines, until
from vm_image.build import GuestImage, ensure_image

pytestmark = pytest.mark.vm

_VM: Json = {
    "apiVersion": "vm.neon.tech/v1",
    "kind": "VirtualMachine",
    "metadata": {"name": "db"},
    "spec": {
        "guest": {
            "rootDisk": {"image": "postgres:15"},
            "cpus": {"min": 1, "max": 1, "use": 1},
            "memorySlotSize": "256Mi",
            "memorySlots": {"min": 1, "max": 1, "use": 1},
        }
    },
}


class WatchedQemu(Qemu):
    """Keeps the machine that was launched last, and counts all of them."""

    machine: Machine
    launches = 0

    async def launch(
        self, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> Machine:
        self.machine = await super().launch(who, command, log, inherit)
        self.launches += 1
        return self.machine


class RunningVm:
    """A VM on a whole runtime with real guests. ``failed`` has the time at which each of its pods was seen to fail, and
    ``delays`` how many seconds after its fault that was.
    """

    def __init__(self, api: InProcess, hypervisor: WatchedQemu, state: Path) -> None:
        self.client, self.hypervisor, self.state = api.client(), hypervisor, state
        self.failed: dict[str, float] = {}
        self.delays: list[float] = []
        self._stir = asyncio.Event()

    def look(self, change: ObjectChange) -> None:
        if change.after is not None and text(change.after, "status", "phase") == "Failed":
            self.failed.setdefault(change.name.name, time.monotonic())
        self._stir.set()

    async def starts_services(self) -> None:
        """Wait until the guest of the present pod starts its services; its drivers are loaded then."""
        known = len(self.failed)

        async def has_begun() -> bool:
            assert len(self.failed) == known, "the guest has ended while it booted"
            # Each begins a console of its own before it is launched.
            consoles = self.state.rglob("console.log") if self.hypervisor.launches > known else ()
            return any(b"services are started" in each.read_bytes() for each in consoles)

        await until(has_begun, BOOT_SECONDS)

    async def fails_after(self, fault: Callable[[RunningVm], Awaitable[None]], reason: str) -> None:
        """The fault ends the pod with the reason, which is in the pod's status and in the VM's event."""
        known = len(self.failed)
        await fault(self)
        happened = time.monotonic()
        async with asyncio.timeout(60):
            while len(self.failed) == known:
                self._stir.clear()
                await self._stir.wait()
        self.delays.append(list(self.failed.values())[-1] - happened)

        async def is_said() -> bool:
            events = (await self.client.list(EVENTS)).objects
            about_vm = [each for each in events if text(each, "involvedObject", "kind") == "VirtualMachine"]
            return any(reason in text(each, "message") for each in about_vm)

        await until(is_said, 60)


@asynccontextmanager
async def running_vm(state: Path, image: GuestImage) -> AsyncIterator[RunningVm]:
    """The VM of this test: an unknown NMI makes its kernel panic, and nothing else is unusual."""
    network = await choose_network(NetworkKind.AUTO, real_guests=True, cluster=cluster_of(state))
    await network.up()
    api, clock, hypervisor = InProcess(), SystemClock(), WatchedQemu()
    vm = RunningVm(api, hypervisor, state)
    prepared = await QemuGuests.prepare(image, network, clock)
    panics = replace(prepared.accelerator, kernel=f"{prepared.accelerator.kernel} unknown_nmi_panic")
    guests = replace(prepared, accelerator=panics, hypervisor=hypervisor)
    try:
        for name in ("virtualmachines.yaml", "virtualmachinemigrations.yaml"):
            await vm.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition(name))
        await network.add_node("n1")
        await register_node(vm.client, NodeSpec("n1", Resources.parse("8", "16Gi")), clock)
        deps = NodeDependencies(vm.client, network, guests, clock, state, None)
        runtime = Runtime(deps, FakeExtender(vm.client).http(), frozenset({"n1"}), sidecars=False)
        pods = Informer(vm.client, PODS, clock)
        pods.listen(vm.look)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each) for each in (runtime.run(), pods.run())]
            await vm.client.create(VIRTUAL_MACHINES, "default", _VM)
            yield vm
            for each in running:
                each.cancel()
    finally:
        await vm.client.__aexit__()
        api.server.close()
        await network.down()


async def is_killed(vm: RunningVm) -> None:
    (pid,) = machines(vm.state)
    os.kill(pid, signal.SIGKILL)


async def _told(vm: RunningVm, command: str) -> None:
    """QEMU does ``command``. The machine may be ended for it before QEMU answers: the reason in the event shows it."""
    with suppress(GuestError):
        await vm.hypervisor.machine.call(command)


async def is_reset(vm: RunningVm) -> None:
    await _told(vm, "system_reset")


async def panics(vm: RunningVm) -> None:
    await _told(vm, "inject-nmi")


async def test_failed_guest_ends_its_pod_with_reason(tmp_path: Path) -> None:
    image = await asyncio.to_thread(ensure_image, print)
    with Slowness() as slow:
        async with running_vm(tmp_path, image) as vm:
            await vm.starts_services()
            await vm.fails_after(panics, "its kernel panicked; QEMU said nothing; its console said ")
            await vm.starts_services()
            await vm.fails_after(is_killed, "QEMU was killed by SIGKILL")
            await vm.starts_services()
            await vm.fails_after(is_reset, "its machine was reset")
            (found,) = (await vm.client.list(VIRTUAL_MACHINES)).objects
            assert items(found, "status", "conditions")
    assert max(vm.delays) < slow.stretched(1), vm.delays
    assert machines(tmp_path) == []


async def test_accelerator_boots_the_real_image(tmp_path: Path) -> None:
    image = await asyncio.to_thread(ensure_image, print)
    trial = BootTrial(Qemu(), image, tmp_path, time.time, limit=60.0)

    async def fault(accelerator: Accelerator, seconds: float) -> str:
        limited = replace(trial, limit=seconds)
        return await limited.fault(lambda fd, at: [*launcher(()), *trial_command(image, accelerator, fd, at)])

    assert await fault(emulation("a test"), 60.0) == ""
    cannot = replace(emulation("a test"), arguments=("-accel", "tcg", "-cpu", "486"))
    assert await fault(cannot, 3.0) == "init did not start within 3 s"
    if KVM_DEVICE.exists() and os.access(KVM_DEVICE, os.R_OK | os.W_OK):
        began = time.monotonic()
        first = await fault(kvm("a test"), 5.0)
        assert time.monotonic() - began < 7
        began = time.monotonic()
        assert (await fault(kvm("a test"), 5.0), time.monotonic() - began < 1) == (first, True)
