"""Parts of ``pods_world``: runner pods over fake QEMUs, and controllers whose requests can be lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx

from deploy.neonvm.addressing import DAEMON_PORT
from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.objects.pod_form import RunnerForm
from deploy.neonvm.ports import FellAsleep, GuestError, GuestSpec, PodSockets, Woken
from deploy.neonvm.qemu.daemon import Body, DaemonResponse, GuestDaemon
from deploy.neonvm.qemu.machine import Decided
from deploy.neonvm.runner.pod_runner import PodExit
from deploy.neonvm.runner.runner_api import RunnerApi
from protocol.kubernetes.objects import Json, child, items, text
from protocol.names import RUNNER_AUTHORITIES
from protocol.units import Seconds
from tests.neonvm.qemu.fakes import FakeGuestDaemon
from tests.neonvm.remote.fake_qemu import FakeQemu
from tests.neonvm.runner.fake_sleeper import FakeSleeper
from vm_image.build import GuestImage

STEP = Seconds(0.02)
"""How often the kubelet, and a test that waits, look again."""

IMAGE = GuestImage(Path("/vm/kernel/vmlinuz"), Path("/vm/kernel/initrd"), Path("/vm/images/rootdisk.qcow2"))


class Daemon(FakeGuestDaemon):
    """The daemon in a guest that follows every order immediately, connected to its runner without sockets."""


@dataclass
class QemuSleeper(FakeSleeper):
    """The guest of a QEMU process that does not exist while it sleeps."""

    qemu: FakeQemu = field(kw_only=True)

    async def fall_asleep(self) -> FellAsleep:
        fell_asleep = await super().fall_asleep()
        self.qemu.run_state = "asleep"
        return fell_asleep

    async def wake(self) -> Woken:
        woken = await super().wake()
        self.qemu.run_state = "running"
        self.qemu.ran()
        return woken


@dataclass
class RunningPod:
    """A runner pod on its node."""

    uid: str
    qemu: FakeQemu
    sleeper: QemuSleeper
    api: RunnerApi
    decide: Callable[[str, Decided], Decided]
    life: asyncio.Task[PodExit]
    stop: asyncio.Event
    is_closed: bool = True


class OpenForm(RunnerForm):
    """Creates pods as NeonVM's controller does, without rules for their clients."""

    def __call__(self, vm: Json, pod: Json) -> Json:
        made = super().__call__(vm, pod)
        (runner,) = items(made, "spec", "containers")
        env = [each for each in items(runner, "env") if text(each, "name") != RUNNER_AUTHORITIES]
        return {**made, "spec": {**child(made, "spec"), "containers": [{**runner, "env": env}]}}


class ObedientQemuGuest(QemuGuest):
    """A guest whose daemon answers without a socket, as long as the guest runs."""

    def __init__(self, spec: GuestSpec, made_by: QemuGuests) -> None:
        super().__init__(spec, made_by)
        self._daemon = ObedientDaemon(self, spec, made_by.sockets)


class ObedientDaemon(GuestDaemon):
    def __init__(self, guest: QemuGuest, spec: GuestSpec, sockets: PodSockets) -> None:
        super().__init__(spec, sockets)
        self.guest, self.has = guest, spec.cpu_use.value

    async def ask(
        self, method: str, path: str, body: Body = "", seconds: float = 5.0, port: int = DAEMON_PORT
    ) -> DaemonResponse:
        if (await self.guest.machine.call("query-status")) != {"status": "running"}:
            raise GuestError(f"the guest did not answer {method} {path} within {seconds:g} s")
        if isinstance(body, str) and body:
            self.has = int(body)
        return DaemonResponse(404, "") if path == "/shutdown" else DaemonResponse(200, str(self.has))


@dataclass(frozen=True)
class Written:
    """One write that was carried out, and its object before and after; None if there was or is none."""

    request: httpx.Request
    before: Json | None
    after: Json | None


class Silent(httpx.AsyncByteStream):
    """A connection that stays open without data."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""


@dataclass
class Killable(httpx.AsyncBaseTransport):
    """A controller's only way out. ``writes`` counts; after ``dies_after`` of them nothing arrives any more.

    Where ``keeps`` is set, ``written`` has each write with its object. A watch of the path ``mute`` delivers nothing.
    """

    inner: httpx.AsyncBaseTransport
    writes: int = 0
    dies_after: int | None = None
    is_dead: bool = False
    asked: list[httpx.Request] = field(default_factory=list)
    keeps: bool = False
    written: list[Written] = field(default_factory=list)
    mute: str = ""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_dead:
            raise httpx.ConnectError("this process is dead")
        self.asked.append(request)
        if self.mute and request.url.path.endswith(self.mute) and "watch" in request.url.params:
            return httpx.Response(200, stream=Silent())
        before = await self._before(request) if self.keeps else None
        answer = await self.inner.handle_async_request(request)
        if self.keeps and request.method != "GET" and answer.is_success:
            after = None if request.method == "DELETE" else json.loads(await answer.aread())
            self.written.append(Written(request, before, after))
        if request.method not in {"GET", "HEAD"} and "leases" not in request.url.path:
            self.writes += 1
            if self.writes == self.dies_after:
                self.is_dead = True
        if self.is_dead:
            raise httpx.ReadError("this process has died")
        return answer

    async def _before(self, request: httpx.Request) -> Json | None:
        if request.method not in {"PATCH", "DELETE"}:
            return None
        url = request.url.copy_with(path=request.url.path.removesuffix("/status"))
        found = await self.inner.handle_async_request(httpx.Request("GET", url, headers=request.headers))
        before: Json | None = json.loads(await found.aread()) if found.is_success else None
        return before
