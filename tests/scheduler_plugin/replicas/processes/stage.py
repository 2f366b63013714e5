"""The embedded API server, replicas as processes with separate connections to it, and the routes of clients."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2 as httpx
import yaml

from deploy.local.cluster.content import local_crds
from deploy.neonvm.network.sockets import free_ports
from protocol.kubernetes.endpoint_slices import ready_addresses
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, ENDPOINT_SLICES, LEASES
from tests.kubernetes.failing.fleet import Fleet
from tests.kubernetes.failing.our_programs import SETTINGS
from tests.local.apiserver.running import TOKEN, running_api_server
from tests.plain_http import plain_client
from tests.scheduler_plugin.replicas.processes.cutting_proxy import CuttingProxy, cutting_proxy

FOLLOWING: Final = f"{SETTINGS}permits: {{asPodRequests: true}}\n"
FIRST: Final = {"cpu": "1", "memory": "4Gi"}
"""What pods of VMs are made with where requests follow: what their VMs have at first."""

NAMESPACE: Final = "kube-system"
NAME: Final = "autoscaling-scheduler"
SLICE: Final = ENDPOINT_SLICES.path(NAMESPACE, NAME)
LEASE: Final = LEASES.path(NAMESPACE, NAME)


@dataclass(slots=True, eq=False)
class ReplicaProcess:
    """A replica that listens for agents at ``address`` and the stage's port."""

    address: str
    proxy: CuttingProxy
    folder: Path
    command: list[str]
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it; returns at once."""
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                "setpriv", "--pdeathsig", "KILL", "--", sys.executable, *self.command, stderr=log, stdout=log
            )

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait until the process ends. Returns its exit status."""
        assert self.process is not None
        return await self.process.wait()


@dataclass(slots=True, eq=False)
class Stage:
    """Replicas by address, and the replica to which agents are routed."""

    http: httpx.AsyncClient
    fleet: Fleet
    agents_port: int
    probes_port: int
    replicas: dict[str, ReplicaProcess] = field(default_factory=dict)

    async def served(self) -> str:
        """The address to which the Service routes; empty if there is none."""
        found = ready_addresses((await self.http.get(SLICE)).json())
        return found[0][0] if found else ""

    async def is_ready(self, replica: ReplicaProcess) -> bool:
        """True if the replica has listed the cluster."""
        with suppress(httpx.TransportError):
            return (await self.http.get(f"http://{replica.address}:{self.probes_port}/readyz", timeout=1.0)).is_success
        return False

    async def page(self, replica: ReplicaProcess) -> str:
        """Its metrics."""
        return (await self.http.get(f"http://{replica.address}:{self.probes_port}/metrics")).text


@asynccontextmanager
async def stage(folder: Path, count: int, seconds: int, *, follows: bool = False) -> AsyncIterator[Stage]:
    """So many replicas, with a Lease of this many seconds. ``follows``: requests of pods follow their VMs (B.10)."""
    agents_port, extender_port, probes_port = free_ports(3)
    async with AsyncExitStack() as stack:
        handle = await stack.enter_async_context(running_api_server(folder))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        http = await stack.enter_async_context(plain_client(base_url=handle.url, headers=headers, timeout=10.0))
        made = Stage(http, Fleet(http, FIRST if follows else {}), agents_port, probes_port)
        await _prepare(made)
        for number in range(count):
            proxy = await stack.enter_async_context(cutting_proxy(int(handle.url.rpartition(":")[2])))
            address = f"127.0.0.{number + 2}"
            ports = {"agents": agents_port, "extender": extender_port, "metrics": probes_port}
            listens = [f"--listen-{name}={address}:{port}" for name, port in ports.items()]
            lease = [f"--lease={NAMESPACE}/{NAME}", f"--lease-duration={seconds}"]
            leads = [f"--leader-endpoints={NAME}", f"--pod-ip={address}"]
            files = _files(folder / address, proxy, FOLLOWING if follows else SETTINGS)
            replica = ReplicaProcess(
                address, proxy, folder / address, ["-m", "scheduler_plugin", *files, *listens, *lease, *leads]
            )
            made.replicas[address] = replica
            stack.push_async_callback(_end, replica)
            await replica.start()
        yield made


async def _prepare(made: Stage) -> None:
    for definition in local_crds():
        await made.fleet.create(CUSTOM_RESOURCE_DEFINITIONS.path(), dict(definition))
    await made.fleet.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "vm-agent"}})
    body = {
        "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "ports": [{"name": "agents", "port": made.agents_port}],
    }
    await made.fleet.create(ENDPOINT_SLICES.path(NAMESPACE), body)


def _files(folder: Path, proxy: CuttingProxy, settings: str) -> list[str]:
    folder.mkdir()
    config = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{proxy.port}"}}],
        "users": [{"name": "it", "user": {"token": TOKEN}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    (folder / "config.yaml").write_text(settings)
    return [f"--kubeconfig={folder / 'kubeconfig'}", f"--config={folder / 'config.yaml'}"]


async def _end(replica: ReplicaProcess) -> None:
    if replica.process is not None and replica.process.returncode is None:
        os.kill(replica.process.pid, signal.SIGKILL)
        await replica.process.wait()
