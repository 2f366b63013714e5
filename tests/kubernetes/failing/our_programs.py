"""Our programs as processes of their own, with their real settings, kubeconfigs and service account tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
import yaml

from deploy.neonvm.network.sockets import free_ports
from deploy.neonvm.service.__main__ import LOST
from protocol.units import Resources
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import FaultyProxy
from tests.kubernetes.failing.fleet import Fleet, Vm, until
from tests.kubernetes.failing.obedient_guest import Guest
from tests.plain_http import plain_client

SETTINGS: Final = """
nodeDefaults:
  computeUnit: {vCPUs: 250m, mem: 1Gi}
  cpu: {watermark: 1.0, system: 0}
  memory: {watermark: 1.0, system: 0}
migration: {enabled: false}
agents: {nodeAgents: ["kube-system:autoscaling-agent"]}
"""
"""Nothing kept back, and no VM moves: what is reserved is what the objects say."""


NOTHING: Final[Mapping[str, Resources]] = {}


@dataclass(frozen=True, slots=True)
class Identity:
    """Files in ``folder`` with the API server's address and a program's credentials."""

    folder: Path
    kubeconfig: Path
    token: Path
    authority: Path


def identity(folder: Path, plane: BareControlPlane, proxy: FaultyProxy, token: str) -> Identity:
    """An identity with ``token``, which connects through ``proxy``."""
    folder.mkdir()
    found = Identity(folder, folder / "kubeconfig", folder / "token", folder / "ca.pem")
    found.token.write_text(token)
    found.authority.write_bytes(plane.pki.signer.pair.certificate)
    cluster = {"server": proxy.url, "certificate-authority": str(found.authority)}
    config = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"tokenFile": str(found.token)}}],
    }
    found.kubeconfig.write_text(yaml.safe_dump(config))
    return found


@contextmanager
def process(log: Path, *command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that must still run when its test is over, and ends then when it is told to. What has ended
    before with ``LOST`` has lost its Lease.
    """
    with log.open("ab") as said:
        program = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, *command],
            stderr=said,
            stdout=said,
            env={**os.environ, **environment},
        )
    try:
        yield program
        assert program.poll() in (None, LOST), f"it has ended: {log.read_text()[-2000:]}"
        program.terminate()
        assert program.wait(15.0) in (0, LOST), log.read_text()[-2000:]
        assert "Traceback" not in log.read_text()
    finally:
        program.kill()
        program.wait()


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Our scheduler, and where its listeners are: two URLs, and of the extender host and port."""

    agents: str
    extender: str
    probes: str
    http: httpx.AsyncClient
    log: Path

    async def is_ready(self) -> bool:
        """True if it has read the cluster."""
        try:
            return (await self.http.get(f"{self.probes}/readyz")).is_success
        except httpx.TransportError:
            return False

    async def book(self) -> dict[str, dict[str, Resources]]:
        """Reservations by node and VM."""
        nodes = (await self.http.get(f"{self.probes}/nodes")).json()["nodes"]
        return {node["name"]: {_vm(pod): _amount(pod["reserved"]) for pod in node["pods"]} for node in nodes}

    async def has_booked(self, fleet: Fleet, held: Mapping[str, Resources] = NOTHING) -> bool:
        """True if every VM's reservation covers its objects, or what its agent was granted (``held``)."""
        claims = await fleet.claims()
        due = {
            node: {vm: found.at_least(held.get(vm, found)) for vm, found in vms.items()} for node, vms in claims.items()
        }
        return await self.book() == due

    async def bind(self, vm: Vm, uid: str, node: str) -> str:
        """The response to kube-scheduler; empty if the VM's pod is bound."""
        body = {"PodName": f"{vm.name}-pod", "PodNamespace": "default", "PodUID": uid, "Node": node}
        return str((await self.http.post(f"http://{self.extender}/bind", json=body)).json()["Error"])

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = (await self.http.get(f"{self.probes}/metrics")).text.splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(map(float, values))


def _vm(pod: Any) -> str:
    return str(pod["pod"]).rpartition("/")[2].removesuffix("-pod")


def _amount(found: Any) -> Resources:
    return Resources.parse(found["cpu"], found["mem"])


@asynccontextmanager
async def scheduler(known: Identity, ahead: float = 0.0, *flags: str) -> AsyncIterator[Scheduler]:
    """A scheduler that has listed the cluster; its clock is ``ahead`` seconds ahead. ``flags`` are extra flags."""
    (known.folder / "config.yaml").write_text(SETTINGS)
    ports = dict(zip(("agents", "extender", "metrics"), free_ports(3), strict=True))
    listens = [f"--listen-{name}=127.0.0.1:{port}" for name, port in ports.items()]
    files = [f"--config={known.folder / 'config.yaml'}", f"--kubeconfig={known.kubeconfig}"]
    log = known.folder / "log"
    with process(log, *python("scheduler_plugin", ahead), *files, *listens, *flags):
        async with plain_client() as http:
            urls = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
            found = Scheduler(f"http://{urls['agents']}/", urls["extender"], f"http://{urls['metrics']}", http, log)
            await until(found.is_ready, "the scheduler is ready")
            yield found


@contextmanager
def agent(known: Identity, vm: Vm, guest: Guest, proxy: FaultyProxy, ours: Scheduler) -> Iterator[str]:
    """The agent of a VM; its URL."""
    (port,) = free_ports(1)
    (known.folder / "scheduler-token").write_text(vm.token)
    environment = {
        "VM_NAME": vm.name,
        "POD_NAME": f"{vm.name}-pod",
        "POD_NAMESPACE": "default",
        "AGENT_LISTEN": f"127.0.0.1:{port}",
        "SCHEDULER_URL": ours.agents,
        "SCHEDULER_TOKEN_FILE": str(known.folder / "scheduler-token"),
        "METRICS_URL": guest.metrics_url,
        "KUBERNETES_API_URL": proxy.url,
        "KUBERNETES_TOKEN_FILE": str(known.token),
        "KUBERNETES_CA_FILE": str(known.authority),
    }
    with process(known.folder / "log", "-m", "agent", **environment):
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def node_agent(
    known: Identity, node: str, guest: Guest, proxy: FaultyProxy, ours: Scheduler
) -> AsyncIterator[NodeAgent]:
    """The agent of all VMs of a node, whose guests all say what ``guest`` says; its token is in ``scheduler-token``."""
    (port,) = free_ports(1)
    (known.folder / "policy.yaml").write_text("timing: {tick: 10s}")
    environment = {
        "AGENT_MODE": "node",
        "NODE_NAME": node,
        "AGENT_LISTEN": f"127.0.0.1:{port}",
        "AGENT_CONFIG": str(known.folder / "policy.yaml"),
        "SCHEDULER_URL": ours.agents,
        "SCHEDULER_TOKEN_FILE": str(known.folder / "scheduler-token"),
        "METRICS_URL": guest.metrics_url,
        "KUBERNETES_API_URL": proxy.url,
        "KUBERNETES_TOKEN_FILE": str(known.token),
        "KUBERNETES_CA_FILE": str(known.authority),
    }
    with process(known.folder / "log", "-m", "agent", **environment):
        async with plain_client() as http:
            yield NodeAgent(f"http://127.0.0.1:{port}", http)


@dataclass(frozen=True, slots=True)
class NodeAgent:
    """The agent of a node."""

    url: str
    http: httpx.AsyncClient

    async def metric(self, line: str) -> float:
        """The value of the metric that is written so, labels included; 0 if there is none."""
        lines = (await self.http.get(f"{self.url}/metrics")).text.splitlines()
        return sum(float(each.removeprefix(line)) for each in lines if each.startswith(f"{line} "))


@dataclass(frozen=True, slots=True)
class Controller:
    """A replica of the NeonVM controller or of autoscale-groups."""

    probes: str
    program: subprocess.Popen[bytes]
    http: httpx.AsyncClient

    async def leads(self) -> bool:
        """True if it says that it holds the Lease."""
        return "leading" in await self.said()

    async def stands_by(self) -> bool:
        """True if it says that another holds it."""
        return "standing by" in await self.said()

    async def has_ended(self) -> bool:
        """True if it has lost the Lease that it held, and ended."""
        return self.program.poll() == LOST

    async def said(self) -> str:
        """The program's report about itself; empty while it does not respond."""
        try:
            return (await self.http.get(f"{self.probes}/readyz", timeout=1.0)).text
        except httpx.TransportError:
            return ""


@asynccontextmanager
async def controller(known: Identity, module: str, ahead: float = 0.0, *flags: str) -> AsyncIterator[Controller]:
    """One whose calendar is this many seconds ``ahead`` of the others'."""
    (port,) = free_ports(1)
    command = (*python(module, ahead), f"--kubeconfig={known.kubeconfig}", f"--listen=127.0.0.1:{port}", *flags)
    with process(known.folder / "log", *command) as program:
        async with plain_client() as http:
            yield Controller(f"http://127.0.0.1:{port}", program, http)


def python(module: str, ahead: float = 0.0) -> tuple[str, ...]:
    """The interpreter's arguments that run a module, on a calendar this many seconds ahead."""
    if not ahead:
        return ("-m", module)
    skewed = "import runpy, time; now, now_ns = time.time, time.time_ns; "
    skewed += f"time.time = lambda: now() + {ahead}; time.time_ns = lambda: now_ns() + int({ahead} * 1e9); "
    return ("-c", f"{skewed}runpy.run_module({module!r}, run_name='__main__')")
