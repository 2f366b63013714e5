"""Stand-ins for kubelets and runners of VM pods: the pods run, have addresses, and have guests.

The guest's CPU is asked and set over our runner's own API, its memory over QMP as far as our gate lets it through; a
runner of NeonVM's has no gate. Pods of our controller let in its clients alone. Their
metrics are those of an image of the original's vm-builder: vector's ``host_*``.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

import httpx2 as httpx

from deploy.neonvm.access.authenticated_listener import AuthenticatedListener, Tls
from deploy.neonvm.access.callers import may_use_monitor
from deploy.neonvm.access.keys import PodIdentity
from deploy.neonvm.ports import GuestPhase, GuestState
from deploy.neonvm.runner.gate_server import split
from deploy.neonvm.runner.pod_runner import PodRunner, RunnerStatus
from deploy.neonvm.runner.qmp_gate import GateState, refusal
from deploy.neonvm.runner.runner_api import RunnerApi
from deploy.neonvm.simulated.simulated_load import Demand, Load
from deploy.neonvm.simulated.simulated_model import SimulatedKernel
from protocol.names import RUNNER_AUDIENCE, RUNNER_AUTHORITIES
from protocol.runtime.serving.http_requests import HttpResponse
from protocol.units import Bytes, MilliCpu, Resources, Seconds
from protocol.virtual_machine import parse_virtual_machine
from tests.kubernetes.failing.fleet import PODS, VMS, Fleet, Obj, UnansweredError
from tests.kubernetes.neon.guest_monitor import GuestMonitor
from tests.kubernetes.neon.places import Place

RUNNER: Final = 25183
QMP: Final = 20183
METRICS: Final = 9100
MONITOR: Final = 10301
_MOST_CPUS: Final = 8
_GREETING: Final = b'{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}}, "capabilities": []}}\r\n'


@dataclass(slots=True)
class RunnerPod:
    """The guest behind one pod. ``refused`` are the commands that our gate would not pass on."""

    kernel: SimulatedKernel
    base: Bytes
    holds_moves: Callable[[], bool]
    born: float = field(default_factory=time.monotonic)
    has_gate: bool = True
    has_ended: bool = False
    sent_to: str = ""
    refused: list[str] = field(default_factory=list)
    monitor: GuestMonitor = field(default_factory=GuestMonitor)

    def load(self, cores: float, memory: str = "1Gi") -> None:
        """Set the demand for vCPUs and memory."""
        self._advance()
        self.kernel = self.kernel.under(Demand(cores, Bytes.parse(memory)))

    def _advance(self) -> None:
        self.kernel = self.kernel.advanced(Seconds(time.monotonic() - self.born))

    # What the runner's API needs of its pod ------------------------------------------------------------------

    async def status(self) -> RunnerStatus:
        size = self.kernel.size
        return RunnerStatus(GuestPhase.RUNNING.value, size.cpu.value, size.mem.value, "tcg", "a test", given=False)

    async def state(self) -> GuestState:
        return GuestState(GuestPhase.RUNNING, self.kernel.size.cpu, self.kernel.size.mem)

    async def is_ready(self) -> bool:
        return True

    async def set_cpu(self, use: MilliCpu) -> MilliCpu:
        self._advance()
        self.kernel = self.kernel.resized(Resources(use, self.kernel.requested.mem))
        return use

    # QEMU's monitor ----------------------------------------------------------------------------------------------

    async def qmp(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client of QEMU's monitor."""
        if not may_use_monitor(who):
            return
        writer.write(_GREETING)
        said = ""
        with suppress(OSError):
            while part := await reader.read(65536):
                messages, said = split(said + part.decode())
                for message in cast("list[Obj]", messages):
                    named = {"id": message["id"]} if "id" in message else {}
                    writer.write(json.dumps(self._answer(message) | named).encode() + b"\r\n")
        writer.close()

    def _answer(self, message: Obj) -> Obj:
        why = refusal(message, GateState(max_plugged=2**40)) if self.has_gate else ""
        if why:
            self.refused.append(why)
            return {"error": {"class": "CommandNotFound", "desc": why}}
        return {"return": self._done(message["execute"], message.get("arguments", {}))}

    def _done(self, command: str, arguments: Obj) -> Any:
        size = self.kernel.size
        match command:
            case "qom-get":
                return self.kernel.requested.mem.value - self.base.value
            case "qom-set":
                self._advance()
                wanted = Bytes(self.base.value + int(arguments["value"]))
                self.kernel = self.kernel.resized(Resources(self.kernel.requested.cpu, wanted))
            case "query-status":
                return {"status": "running"}
            case "query-memory-size-summary":
                return {"base-memory": self.base.value, "plugged-memory": size.mem.value - self.base.value}
            case "migrate":
                self.sent_to = str(arguments["uri"])
            case "query-migrate":
                state = "none" if not self.sent_to else "active" if self.holds_moves() else "completed"
                return {"status": state, "total-time": 900, "downtime": 50}
            case "quit":
                self.has_ended = True
        return {}

    # Metrics -----------------------------------------------------------------------------------------------------

    def page(self) -> str:
        """vector's page of host metrics."""
        self._advance()
        counters, size = self.kernel.counters, self.kernel.size
        used = self.kernel.mem_used
        gauges = {
            "load1": self.kernel.demand.cpu,  # as after some minutes of it
            "load5": counters.load[1],
            "memory_total_bytes": size.mem.value,
            "memory_available_bytes": size.mem.value - used.value,
            "memory_cached_bytes": 0,
        }
        lines = [f'# TYPE host_{name} gauge\nhost_{name}{{host="pg"}} {value}' for name, value in gauges.items()]
        lines.append("# TYPE host_cpu_seconds_total counter")
        for number in range(size.cpu.whole_cpus):
            for mode, seconds in (("user", counters.busy[number]), ("idle", counters.idle[number])):
                lines.append(f'host_cpu_seconds_total{{cpu="{number}",mode="{mode}"}} {seconds}')
        return "\n".join(lines) + "\n"

    async def metrics(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to vector."""
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            page = self.page().encode()
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {len(page)}"
            writer.write(head.encode() + b"\r\n\r\n" + page)
            await writer.drain()
        writer.close()


class NeonsRunner(RunnerApi):
    """NeonVM's own runner, which reports only the guest's CPU."""

    async def answer(self, who: str, method: str, target: str, body: bytes) -> HttpResponse:
        """The answer to one request."""
        known = target in {"/cpu_current", "/cpu_change", "/ready"}
        return (
            await super().answer(who, method, target, body)
            if known
            else HttpResponse(b"404 page not found\n", HTTPStatus.NOT_FOUND)
        )


@dataclass(slots=True)
class Kubelet:
    """Runs the pods of VMs that are bound: each gets one of the place's addresses, and a guest behind it.

    While it ``holds_moves`` no migration comes to its end.
    """

    fleet: Fleet
    place: Place
    holds_moves: bool = False
    pods: dict[str, RunnerPod] = field(default_factory=dict)
    _free: list[str] = field(default_factory=list)
    _servers: list[asyncio.Server] = field(default_factory=list)
    _doors: list[AuthenticatedListener] = field(default_factory=list)

    async def run(self) -> None:
        """Serve all pods forever."""
        self._free = list(self.place.more)
        while True:
            with suppress(httpx.HTTPError, UnansweredError):
                for pod in await self.fleet.list(PODS):
                    await self._tend(pod)
            await asyncio.sleep(0.2)

    async def _tend(self, pod: Obj) -> None:
        name = pod["metadata"]["name"]
        made = self.pods.get(name)
        if pod["metadata"].get("deletionTimestamp"):
            await self.fleet.http.request("DELETE", f"{PODS}/{name}", json={"gracePeriodSeconds": 0})
        elif made is not None and made.has_ended and pod["status"].get("phase") != "Succeeded":
            await self.fleet.patch(f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})
        elif made is None and pod["spec"].get("nodeName") and "vm.neon.tech/name" in pod["metadata"]["labels"]:
            await self._start(name, pod)

    async def _start(self, name: str, pod: Obj) -> None:
        found = await self.fleet.http.get(f"{VMS}/{pod['metadata']['labels']['vm.neon.tech/name']}")
        vm = parse_virtual_machine(found.json())
        kernel = SimulatedKernel.booted(Load.constant(0.1, Bytes.parse("512Mi")), vm.use, _MOST_CPUS)
        made = self.pods[name] = RunnerPod(kernel, vm.bounds.min.mem, lambda: self.holds_moves)
        address = self._free.pop(0)
        identity, tls = await self._identity(pod)
        made.has_gate = pod["spec"]["containers"][0]["command"][0] != "runner"
        api = (RunnerApi if made.has_gate else NeonsRunner)(cast("PodRunner", made), identity)
        for port, serve in ((RUNNER, api.serve), (QMP, made.qmp)):
            self._doors.append(AuthenticatedListener(self.place.listening(address, port), serve, tls))
        for port, plain in ((METRICS, made.metrics), (MONITOR, made.monitor.serve)):
            self._servers.append(await asyncio.start_server(plain, sock=self.place.listening(address, port)))
        ready = [{"name": "neonvm-runner", "ready": True, "restartCount": 0, "image": "r", "imageID": "r", "state": {}}]
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        status |= {"containerStatuses": ready, "conditions": conditions}
        await self.fleet.patch(f"{PODS}/{name}/status", {"status": status})

    async def _identity(self, pod: Obj) -> tuple[PodIdentity | None, Tls | None]:
        """Credentials and trusted CAs of our pod; nothing for a pod of NeonVM."""
        env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0].get("env", [])}
        if RUNNER_AUTHORITIES not in env:
            return None, None
        about, account = pod["metadata"], pod["spec"].get("serviceAccountName", "default")
        token = Path(tempfile.mkdtemp()) / "token"
        token.write_text(await self.fleet.token(about["namespace"], account, RUNNER_AUDIENCE, pod))
        identity = PodIdentity(about["name"], env[RUNNER_AUTHORITIES], token)
        return identity, identity.context

    async def close(self) -> None:
        """Nothing listens any more."""
        for door in self._doors:
            await door.close()
        for server in self._servers:
            server.close()


@asynccontextmanager
async def kubelet(fleet: Fleet, place: Place) -> AsyncIterator[Kubelet]:
    """One at work."""
    made = Kubelet(fleet, place)
    task = asyncio.create_task(made.run())
    try:
        yield made
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.close()
