"""etcd and kube-apiserver in a network namespace of this process, and the programs that are measured beside them.

This process is alone in its namespaces (see ``__main__``): no port is taken, and nothing outlives it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx2 as httpx
import yaml

from deploy.kube.client import ApiClient, client_from_kubeconfig
from deploy.local.cluster.content import apply_crds
from deploy.local.kubeconfigs import kubeconfig, tokened
from deploy.local.kubernetes.machine.credentials import INSIDE, Pki
from deploy.local.kubernetes.plan import arguments
from deploy.local.kubernetes.plan.cluster_plan import CONTROL_HOST
from deploy.local.kubernetes.programs.ensure import Programs
from deploy.local.kubernetes.programs.versions import ETCD
from deploy.local.private_file import write_private
from deploy.local.process import LocalProgram, end, start
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, child, text
from protocol.kubernetes.resources import NAMESPACES, SERVICE_ACCOUNTS, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.bench.kubernetes.made_objects import NAMESPACE
from scripts.bench.load_client import BenchError

_RBAC: Final = "rbac.authorization.k8s.io"
_ROLES: Final = Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
_BINDINGS: Final = Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
_APPLIED: Final = {resource.kind: resource for resource in (SERVICE_ACCOUNTS, _ROLES, _BINDINGS)}
# All pods of a round are deleted before the next one begins; the default is one worker.
_DELETE_WORKERS: Final = "--delete-collection-workers=16"
AGENTS_PORT: Final = 10299
_METRICS: Final = "127.0.0.1:10297"
_PATIENCE: Final = Seconds(90.0)
_PAUSE: Final = Seconds(0.02)
MANIFEST: Final = Path(__file__).parents[3] / "deploy" / "scheduler-deploy.yaml"


def manifest() -> list[Json]:
    """The objects of ``deploy/scheduler-deploy.yaml``."""
    # A separator at the end of the file makes an empty document.
    return [document for document in yaml.safe_load_all(MANIFEST.read_text()) if document]


@dataclass(frozen=True, slots=True)
class Running:
    """A started program."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class Plane:
    """The control plane, and where files of the measured programs are. ``parts`` are its own programs."""

    folder: Path
    programs: Programs
    client: ApiClient
    clock: Clock
    parts: Sequence[Running]

    @property
    def admin_token(self) -> str:
        """Token of an administrator."""
        return (self.folder / "pki" / "admin-token").read_text().strip()

    @property
    def authority(self) -> Path:
        """Issuer of the API server's certificate."""
        return self.folder / "pki" / "ca.pem"

    @asynccontextmanager
    async def service(self) -> AsyncIterator[Running]:
        """Our service with the settings that are shipped, ready."""
        command = [sys.executable, "-m", "scheduler_plugin", f"--kubeconfig={self.folder / 'service.kubeconfig'}"]
        listens = [f"--listen-agents=127.0.0.1:{AGENTS_PORT}", "--listen-extender=127.0.0.1:10298", "--hold-back=0"]
        program = LocalProgram(
            (*command, f"--config={MANIFEST}", *listens, f"--listen-metrics={_METRICS}"),
            self.folder / "logs" / "service.log",
        )
        async with started(program, "service") as running, httpx.AsyncClient(trust_env=False) as client:

            async def is_ready() -> bool:
                return (await client.get(f"http://{_METRICS}/readyz")).is_success

            await until(is_ready, self.clock, program.log)
            yield running

    @asynccontextmanager
    async def kube_scheduler(self, settings: Json) -> AsyncIterator[Running]:
        """kube-scheduler with these settings; not yet ready."""
        file = self.folder / "kube-scheduler.yaml"
        write_private(file, yaml.safe_dump(settings))
        users = [f"--{what}-kubeconfig={self.scheduler_kubeconfig}" for what in ("authentication", "authorization")]
        command = (str(self.programs.kubernetes / "kube-scheduler"), f"--config={file}", *users, "--v=1")
        async with started(
            LocalProgram(command, self.folder / "logs" / "kube-scheduler.log"), "kube-scheduler"
        ) as running:
            yield running

    @property
    def scheduler_kubeconfig(self) -> str:
        """Path of kube-scheduler's kubeconfig."""
        return str(self.folder / "pki" / "scheduler.kubeconfig")


@asynccontextmanager
async def started(program: LocalProgram, name: str) -> AsyncIterator[Running]:
    """Runs a program for as long as the block lasts."""
    process = await start(program)
    try:
        yield Running(name, process.pid)
    finally:
        await end(process)


async def until(holds: Callable[[], Awaitable[bool]], clock: Clock, log: Path) -> None:
    """Returns once ``holds``. Raises ``BenchError`` with the end of the ``log`` when that takes too long."""
    deadline = Instant(clock.now() + _PATIENCE)
    while True:
        try:
            if await holds():
                return
        # Not ready looks like that: connections are refused, or the API server answers 5xx.
        except (httpx.HTTPError, ApiError):
            pass
        if clock.now() >= deadline:
            raise BenchError(f"{log.stem} did not become ready within {_PATIENCE:g} s: {_end_of(log)}")
        await clock.sleep(_PAUSE)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-800:] if log.exists() else ""


def make_network() -> None:
    """Gives this process' own network namespace a loopback with the API server's address."""
    # A new network namespace has no address at all, and its loopback is down.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{CONTROL_HOST}/32", "dev", "lo"], check=True)


@asynccontextmanager
async def control_plane(folder: Path, programs: Programs, clock: Clock) -> AsyncIterator[Plane]:
    """A control plane without nodes, with our kinds and the rights of our service."""
    pki, logs = Pki.make(folder / "pki", datetime.now(UTC)), folder / "logs"
    store = (str(programs.folders[ETCD.name] / "etcd"), *arguments.etcd(str(folder / "etcd")))
    server = (str(programs.kubernetes / "kube-apiserver"), *arguments.api_server(str(pki.folder)), _DELETE_WORKERS)
    write_private(folder / "kubeconfig", pki.admin_kubeconfig(INSIDE))
    async with AsyncExitStack() as stack:
        parts = [
            await stack.enter_async_context(started(LocalProgram(command, logs / f"{name}.log"), name))
            for name, command in (("etcd", store), ("kube-apiserver", server))
        ]
        client = await stack.enter_async_context(client_from_kubeconfig(folder / "kubeconfig"))

        async def answers() -> bool:
            return bool(await client.raw_get("/readyz"))

        await until(answers, clock, logs / "kube-apiserver.log")
        await apply_crds(client, clock)
        write_private(folder / "service.kubeconfig", await _service_kubeconfig(client, pki))
        yield Plane(folder, programs, client, clock, parts)


async def _service_kubeconfig(client: ApiClient, pki: Pki) -> str:
    await client.create(NAMESPACES, "", {"metadata": {"name": NAMESPACE}})
    # No controller manager runs that would create the default accounts.
    for name in (NAMESPACE, "kube-system"):
        await client.create(SERVICE_ACCOUNTS, name, {"metadata": {"name": "default"}})
    for shipped in manifest():
        resource = _APPLIED.get(text(shipped, "kind"))
        if resource is not None:
            await client.create(resource, text(shipped, "metadata", "namespace"), shipped)
    # The service has the rights that are shipped, so that a missing one fails the bench, too.
    account = ObjectName("kube-system", "autoscaling-scheduler")
    made = await client.post_subresource(SERVICE_ACCOUNTS, account, "token", {"spec": {"expirationSeconds": 7200}})
    token = text(child(made, "status"), "token")
    return kubeconfig(INSIDE, pki.signer.pair.certificate, account.name, tokened(token))
