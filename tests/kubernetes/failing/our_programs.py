"""Our programs as processes of their own, with their real settings, kubeconfigs and service account tokens."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from protocol.kubernetes.objects import Json
from protocol.units import Resources
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import FaultyProxy
from tests.kubernetes.failing.fleet import Fleet, until
from tests.plain_http import plain_client

SETTINGS: Final = """
nodeDefaults:
  computeUnit: {vCPUs: 250m, mem: 1Gi}
  cpu: {watermark: 1.0, system: 0}
  memory: {watermark: 1.0, system: 0}
migration: {enabled: false}
"""
"""Nothing kept back, and no VM moves: what is reserved is what the objects say."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a program finds the API server and what it shows: files in ``folder``."""

    folder: Path
    kubeconfig: Path
    token: Path
    authority: Path


async def identity(folder: Path, plane: BareControlPlane, proxy: FaultyProxy, fleet: Fleet, account: str) -> Identity:
    """Those of a service account of kube-system, by way of ``proxy``."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Identity(folder, folder / "kubeconfig", folder / "token", folder / "ca.pem")
    found.token.write_text(await fleet.token("kube-system", account))
    found.authority.write_bytes(plane.pki.signer.certificate_pem)
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
    """A Python program that must still run when its test is over, and ends then when it is told to."""
    with log.open("ab") as said:
        program = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, *command],
            stderr=said,
            stdout=said,
            env=None if not environment else environment,
        )
    try:
        yield program
        assert program.poll() is None, f"it has ended: {log.read_text()[-2000:]}"
        program.terminate()
        assert program.wait(15.0) == 0, log.read_text()[-2000:]
        assert "Traceback" not in log.read_text()
    finally:
        program.kill()
        program.wait()


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Our scheduler, and where its listeners are."""

    agents: str
    probes: str
    http: httpx.AsyncClient
    log: Path

    async def is_ready(self) -> bool:
        """Whether it has read the cluster."""
        try:
            return (await self.http.get(f"{self.probes}/readyz")).is_success
        except httpx.TransportError:
            return False

    async def book(self) -> dict[str, dict[str, Resources]]:
        """By node and VM: what it has reserved."""
        nodes = (await self.http.get(f"{self.probes}/nodes")).json()["nodes"]
        return {node["name"]: {_vm(pod): _amount(pod["reserved"]) for pod in node["pods"]} for node in nodes}

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = (await self.http.get(f"{self.probes}/metrics")).text.splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(map(float, values))


def _vm(pod: Json) -> str:
    return str(pod["pod"]).rpartition("/")[2].removesuffix("-pod")


def _amount(found: Any) -> Resources:
    return Resources.parse(found["cpu"], found["mem"])


@asynccontextmanager
async def scheduler(known: Identity, *python: str) -> AsyncIterator[Scheduler]:
    """One that has read the cluster. ``python`` are the interpreter's arguments, the module alone unless given."""
    (known.folder / "config.yaml").write_text(SETTINGS)
    ports = dict(zip(("agents", "extender", "metrics"), free_ports(3), strict=True))
    listens = [f"--listen-{name}=127.0.0.1:{port}" for name, port in ports.items()]
    files = [f"--config={known.folder / 'config.yaml'}", f"--kubeconfig={known.kubeconfig}"]
    log = known.folder / "log"
    with process(log, *(python or ("-m", "scheduler_plugin")), *files, *listens):
        async with plain_client() as http:
            found = Scheduler(f"http://127.0.0.1:{ports['agents']}/", f"http://127.0.0.1:{ports['metrics']}", http, log)
            await until(found.is_ready, "the scheduler is ready")
            yield found
