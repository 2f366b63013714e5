"""One runner pod with everything below its API faked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deploy.neonvm.access.callers import CONTROLLER
from deploy.neonvm.access.keys import PodIdentity
from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.sockets import listening, tcp_socket
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.accelerator import Accelerator
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.qemu_command import Files
from deploy.neonvm.runner.frame_return import FrameReturn
from deploy.neonvm.runner.pod_runner import PodExit, PodRunner
from deploy.neonvm.runner.runner_api import RunnerApi
from deploy.neonvm.runner.sleep_migration import PodDisk
from deploy.neonvm.runner.tls_identity import TlsIdentity
from deploy.neonvm.sleep.sleeping import GuestSleep
from protocol.runtime.serving.http_requests import HttpResponse
from protocol.runtime.serving.tcp_listener import TcpListener
from protocol.units import Seconds
from tests.fake_clock import settle
from tests.neonvm.qemu.fakes import FakeGuestDaemon, FakeHypervisor, SteppedClock, spec_in
from tests.neonvm.runner.fake_sleeper import FakeSleeper
from vm_image.build import GuestImage

IMAGE = GuestImage(Path("/vm/kernel/vmlinuz"), Path("/vm/kernel/initrd"), Path("/vm/images/rootdisk.qcow2"))
UP = {"GET /ready": (200, "ready"), "GET /cpu": (200, "1000"), "PUT /cpu 2500": (200, "2500")}


@dataclass
class Place(FrameReturn):
    """An attachment to the flat network that records what is done with it."""

    story: list[str] = field(default_factory=list)
    fault: GuestError | None = None

    def announce(self) -> None:
        self.story.append("announced")

    async def prepare(self, machine: Machine) -> None:
        self.story.append("unread frames will go back")

    async def restore(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.story.append("nothing is diverted")

    def keep(self) -> None:
        self.story.append("the guest stays")

    def return_frames(self, frames: Iterable[tuple[bytes, bytes]]) -> None:
        self.story.append(f"{len(list(frames))} frames go back")

    def close(self) -> None:
        self.story.append("closed")


@dataclass
class Pod:
    """One pod with everything below its API faked."""

    folder: Path
    daemon: FakeGuestDaemon
    receives: bool = False
    identity: PodIdentity | None = None
    flat: Place = field(default_factory=Place)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    sleeper: FakeSleeper = field(default_factory=FakeSleeper)
    asleep: GuestSleep | None = None
    disk_port: int = 0

    def __post_init__(self) -> None:
        self.hypervisor = FakeHypervisor()
        accelerator = Accelerator("tcg", (), "", "a test")
        made_by = QemuGuests(IMAGE, accelerator, self.daemon, SteppedClock(), self.hypervisor)
        guest = QemuGuest(spec_in(self.folder), made_by)
        tls = TlsIdentity("db-abc", self.folder)
        path = Files.of(spec_in(self.folder)).disk
        disk = PodDisk(path, lambda: self.asleep, SteppedClock(), self.disk_port) if self.disk_port else None
        name = ("tcg", "a test")
        self.runner = PodRunner(guest, tls, name, self.flat, self.receives, sleeping_guest=self.sleeper, disk=disk)
        self.api = RunnerApi(self.runner, self.identity)

    async def begin(self) -> asyncio.Task[PodExit]:
        life = asyncio.create_task(self.runner.run(self.stop, Seconds(0.05)))
        await settle()
        return life

    async def ask(self, method: str, path: str, body: object = None) -> HttpResponse:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        return await self.api.answer(CONTROLLER, method, path, sent)


@asynccontextmanager
async def scripted_daemon() -> AsyncIterator[FakeGuestDaemon]:
    """The daemon of a guest that is up."""
    scripted = FakeGuestDaemon(dict(UP))
    serving = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], scripted.serve)
    scripted.port = serving.port
    yield scripted
    await serving.close()


@asynccontextmanager
async def running(pod: Pod) -> AsyncIterator[Pod]:
    """``pod`` with its running guest, which ends afterwards."""
    life = await pod.begin()
    yield pod
    pod.hypervisor.machine.fail("the test is over")
    await life
