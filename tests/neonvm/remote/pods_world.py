"""A cluster in one process: the embedded API server, a kubelet that runs runner pods over fake QEMUs, and controllers.

Controllers are killed as ``kill -9`` does: from one instant on nothing of theirs arrives anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx

from deploy.kube.client import ApiClient
from deploy.neonvm.access.callers import ANYONE, CONTROLLER
from deploy.neonvm.access.connections import RunnerEndpoint
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.objects.pod_form import RunnerForm
from deploy.neonvm.qemu.accelerator import Accelerator
from deploy.neonvm.remote.address_choice import AddressRange
from deploy.neonvm.runner.pod_runner import PodExit, PodRunner
from deploy.neonvm.runner.runner_api import RunnerApi
from deploy.neonvm.runner.runner_arguments import guest_spec, parse_arguments
from deploy.neonvm.runner.tls_identity import TlsIdentity
from deploy.neonvm.service.__main__ import FencedTransport
from deploy.neonvm.service.app import ControllerService, ServiceDependencies
from deploy.neonvm.service.runner_authority import AUTHORITIES, OF_AGENTS, OWN, RunnerAuthority
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, child, has_finished, is_terminating, items, name_of, text, uid_of
from protocol.kubernetes.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    MIGRATIONS,
    PODS,
    SECRETS,
    VIRTUAL_MACHINES,
)
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.runtime.kubernetes.lease import Leadership, LeaseTerms
from protocol.units import Seconds
from tests.fake_clock import FakeClock
from tests.neonvm.in_process import InProcess
from tests.neonvm.remote.asking import Asking
from tests.neonvm.remote.fake_qemu import FakeQemu, FakeQemus
from tests.neonvm.remote.world_parts import IMAGE, STEP, Daemon, Killable, ObedientQemuGuest, QemuSleeper, RunningPod
from tests.neonvm.runtime_fixture import definition
from tests.neonvm.sample_objects import virtual_machine
from tests.plain_http import DirectClient

DB = ObjectName("default", "db")
LEASE = ObjectName("kube-system", "neonvm-controller")
PATIENCE = 1500
LATER, REAL_PAUSE = 300, 0.01
"""A monitor's events are waited for in real time, which the told one may have left far behind by then."""


@dataclass
class World:
    """Two nodes and one VM."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    api: InProcess = field(default_factory=InProcess)
    pods: dict[str, RunningPod] = field(default_factory=dict)
    doubled: list[list[str]] = field(default_factory=list)
    ways: list[Killable] = field(default_factory=list)
    services: list[asyncio.Task[None]] = field(default_factory=list)
    refuse_to_start: str = ""
    began: list[float] = field(default_factory=list)
    form: RunnerForm = field(default_factory=lambda: RunnerForm("runner:1"))
    policy_namespace: str = "kube-system"
    _count: int = 0

    def __post_init__(self) -> None:
        self.client: ApiClient = self.api.client()

    @property
    def running(self) -> list[str]:
        """The pods in which a guest runs."""
        return [name for name, each in self.pods.items() if each.qemu.runs]

    def note(self) -> None:
        if len(self.running) > 1:
            self.doubled.append(self.running)

    # --- controllers
    def start(self, dies_after: int | None = None) -> Killable:
        """Another replica."""
        way = Killable(self.api, dies_after=dies_after)
        headers = {"Authorization": "Bearer secret"}
        plain = httpx.AsyncClient(transport=way, base_url="http://api", headers=headers)
        terms = LeaseTerms(LEASE, Seconds(1.6), Seconds(0.1))
        own_api = HttpApi(plain, lambda: "secret")
        leadership = Leadership(own_api, self.clock, terms, f"replica-{len(self.services)}")
        fenced = FencedTransport(way, lambda: leadership.remaining)
        client = ApiClient(HttpApi(DirectClient(fenced, "http://api", headers), lambda: None))

        async def connect(place: RunnerEndpoint) -> object:
            found = self.at(place.address)
            if way.is_dead or found is None:
                raise ConnectionRefusedError(place.address)
            return await found.qemu.connection()

        async def answered(request: httpx.Request) -> httpx.Response:
            if way.is_dead:
                raise httpx.ConnectError("this process is dead")
            return await self._to_runner(request)

        addresses = AddressRange.parse("10.100.128.0-10.100.128.7")
        authority = RunnerAuthority(own_api, leadership, self.clock, "kube-system")
        deps = ServiceDependencies(
            client,
            leadership,
            Asking(answered),
            connect,  # type: ignore[arg-type]
            self.clock,
            self.form,
            addresses,
            authority,
            policy_namespace=self.policy_namespace,
        )
        self.ways.append(way)
        self.services.append(asyncio.create_task(ControllerService(deps).run()))
        return way

    async def kill(self, number: int = -1) -> None:
        """``kill -9`` of a replica."""
        self.ways[number].is_dead = True
        task = self.services[number]
        task.cancel()
        await asyncio.wait((task,))

    async def _to_runner(self, request: httpx.Request) -> httpx.Response:
        found = self.at(request.url.host)
        if found is None or not found.qemu.alive or found.qemu.is_deaf:
            raise httpx.ConnectError("no route to the pod")
        who = CONTROLLER if found.is_closed else ANYONE
        reply = await found.api.answer(who, request.method, request.url.path, request.content)
        return httpx.Response(reply.status, text=reply.body.decode())

    async def ask(self, pod: str, path: str) -> httpx.Response:
        """The response of a pod's runner."""
        return await self._to_runner(httpx.Request("GET", f"http://{self.pods[pod].qemu.address}{path}"))

    def at(self, address: str) -> RunningPod | None:
        return next((each for each in self.pods.values() if each.qemu.address == address), None)

    # --- the kubelet and the scheduler
    async def attend(self) -> None:
        """Act on pods as the cluster does, until cancelled."""
        while True:
            found = self.api.objects("pods")
            for pod in found:
                await self._sync(pod)
            for gone in self.pods.keys() - {name_of(each).name for each in found}:
                if self.pods[gone].life.done():
                    del self.pods[gone]
            await self.clock.sleep(STEP)

    async def _sync(self, pod: Json) -> None:
        name, found = name_of(pod).name, self.pods.get(name_of(pod).name)
        if found is None and not has_finished(pod) and not is_terminating(pod):
            await self._begin(name, pod)
        elif is_terminating(pod) and (found is None or found.life.done()):
            self.pods.pop(name, None)
            await self._ignore_gone(self.client.delete(PODS, name_of(pod), uid_of(pod), grace=0))
        elif is_terminating(pod) and found is not None:
            found.stop.set()
        elif found is not None and found.life.done() and not has_finished(pod):
            ending = found.life.result()
            terminated: Json = {"state": {"terminated": {"exitCode": ending.code, "message": ending.message}}}
            status: Json = {
                "phase": "Failed" if ending.code else "Succeeded",
                "containerStatuses": [{"name": "neonvm-runner", **terminated}],
            }
            await self._ignore_gone(self.client.merge_patch(PODS, name_of(pod), {"status": status}, "status"))

    async def _ignore_gone(self, doing: object) -> None:
        try:
            await doing  # type: ignore[misc]
        except ApiRefusedError:
            return

    async def _begin(self, name: str, pod: Json) -> None:
        self._count += 1
        number = self._count
        address = f"10.1.0.{number}"
        node = {"apiVersion": "v1", "kind": "Node", "name": f"n{number}"}
        binding: Json = {"metadata": {"name": name, "namespace": "default"}, "target": node}
        await self.client.post_subresource(PODS, name_of(pod), "binding", binding)
        (container,) = items(pod, "spec", "containers")
        arguments = [str(each) for each in container["args"]]  # type: ignore[attr-defined]
        environment = {text(each, "name"): text(each, "value") for each in items(container, "env")}
        told = parse_arguments(arguments, {**environment, "K8S_POD_NAME": name, "POD_UID": uid_of(pod)})
        self.began.append(float(self.clock.now()))
        qemu = FakeQemu(address, lambda to: getattr(self.at(to), "qemu", None), self.note)
        made_by = QemuGuests(IMAGE, Accelerator("tcg", (), "", "a test"), Daemon(), self.clock, FakeQemus(qemu))
        tap = 9 if told.address else None
        folder = self.folder / name
        folder.mkdir(parents=True)
        guest = ObedientQemuGuest(guest_spec(told, folder, folder, tap, 1400), made_by)
        sleeper = QemuSleeper(qemu=qemu)
        runner = PodRunner(
            guest, TlsIdentity(name, folder), ("tcg", "a test"), None, told.receives, sleeping_guest=sleeper
        )
        qemu.read_gate_state = runner.gate_state
        stop = asyncio.Event()
        life = asyncio.create_task(_lived(runner, stop, self.refuse_to_start))
        is_closed = told.authorities is not None
        api = RunnerApi(runner)
        self.pods[name] = RunningPod(uid_of(pod), qemu, sleeper, api, runner.decide, life, stop, is_closed)
        status: Json = {"phase": "Running", "podIP": address}
        await self.client.merge_patch(PODS, name_of(pod), {"status": status}, "status")

    # --- people
    async def create_vm(self, **spec: object) -> None:
        made = virtual_machine()
        body = {**made, "metadata": {"name": "db"}, "spec": {**child(made, "spec"), **spec}}
        await self.client.create(VIRTUAL_MACHINES, "default", body)

    async def move(self, name: str = "move") -> None:
        body: Json = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration"}
        body |= {"metadata": {"name": name}, "spec": {"vmName": "db", "completionTimeout": 60}}
        await self.client.create(MIGRATIONS, "default", body)

    @property
    def status(self) -> Json:
        found = self.api.objects("virtualmachines", "vm.neon.tech")
        return child(found[0], "status") if found else {}

    @property
    def migration(self) -> Json:
        found = self.api.objects("virtualmachinemigrations", "vm.neon.tech")
        return child(found[-1], "status") if found else {}

    @property
    def claims(self) -> list[str]:
        return [name_of(each).name for each in self.api.objects("ipaddresses", "networking.k8s.io")]

    @property
    def sending(self) -> FakeQemu | None:
        return next((each.qemu for each in self.pods.values() if each.qemu.migration == "active"), None)

    async def boot(self) -> None:
        """Start a controller and a VM, and wait until the VM runs."""
        self.start()
        await self.create_vm()
        await self.until(self.runs_well)

    async def send(self) -> None:
        """Wait until a pod sends its guest, and let it finish."""
        await self.until(lambda: self.sending)
        assert self.sending is not None
        self.sending.has_sent()

    def runs_well(self) -> bool:
        """True if one guest runs, in the pod that the VM names."""
        return self.status.get("phase") == "Running" and self.running == [self.status.get("podName")]

    async def until(self, holds: Callable[[], object]) -> None:
        for step in range(PATIENCE + LATER):
            if holds():
                return
            await self.clock.advance(STEP)
            await asyncio.sleep(REAL_PAUSE if step >= PATIENCE else 0)
        raise AssertionError(f"never: {self.status} {self.migration} {self.running} {list(self.pods)}")


async def _lived(runner: PodRunner, stop: asyncio.Event, fault: str) -> PodExit:
    return PodExit(1, fault) if fault else await runner.run(stop, Seconds(0.05))


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """A started cluster, which is closed afterwards."""
    made = World(folder)
    for name in ("virtualmachines.yaml", "virtualmachinemigrations.yaml"):
        await made.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition(name))
    for name in (AUTHORITIES, OWN, OF_AGENTS):
        secret: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        await made.client.create(SECRETS, "kube-system", secret)
    kubelet = asyncio.create_task(made.attend())
    try:
        yield made
    finally:
        for number in range(len(made.services)):
            await made.kill(number)
        kubelet.cancel()
        for each in made.pods.values():
            each.qemu.end_with("the test is over")
            await asyncio.wait((each.life,))
        await asyncio.wait((kubelet,))
        await made.client.__aexit__()
        made.api.server.close()
