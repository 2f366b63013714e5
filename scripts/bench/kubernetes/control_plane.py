"""etcd and kube-apiserver for benchmarks, and the schedulers to measure.

All run in the namespaces of this process (see ``__main__``), so all ports are free and no program outlives the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx2 as httpx
import yaml

from deploy.kube.client import ApiClient, client_from_kubeconfig
from deploy.local.cluster.content import apply_crds
from deploy.local.kubeconfigs import kubeconfig, token_login
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
from protocol.runtime.clock import Clock, poll_until
from protocol.units import Seconds
from scripts.bench.kubernetes.fake_objects import NAMESPACE
from scripts.bench.load_client import BenchError

_RBAC: Final = "rbac.authorization.k8s.io"
_ROLES: Final = Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
_BINDINGS: Final = Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
_APPLIED: Final = {resource.kind: resource for resource in (SERVICE_ACCOUNTS, _ROLES, _BINDINGS)}
# With the default of 1, deleting all pods is slow.
_DELETE_WORKERS: Final = "--delete-collection-workers=16"
AGENTS_PORT: Final = 10299
_METRICS: Final = "127.0.0.1:10297"
_TIMEOUT: Final = Seconds(90.0)
MANIFEST: Final = Path(__file__).parents[3] / "deploy" / "scheduler-deploy.yaml"


def manifest() -> list[Json]:
    """The objects of ``deploy/scheduler-deploy.yaml``."""
    return [item for item in yaml.safe_load_all(MANIFEST.read_text()) if item]


@dataclass(frozen=True, slots=True)
class RunningProgram:
    """A running program."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """etcd and kube-apiserver (``running``). ``folder`` contains the files and logs of all programs."""

    folder: Path
    programs: Programs
    client: ApiClient
    clock: Clock
    running: Sequence[RunningProgram]

    @property
    def admin_token(self) -> str:
        """Admin token."""
        return (self.folder / "pki" / "admin-token").read_text().strip()

    @property
    def authority(self) -> Path:
        """CA file of the API server's certificate."""
        return self.folder / "pki" / "ca.pem"

    @asynccontextmanager
    async def service(self) -> AsyncIterator[RunningProgram]:
        """Run our scheduler with the shipped settings; yield when it is ready."""
        command = [sys.executable, "-m", "scheduler_plugin", f"--kubeconfig={self.folder / 'service.kubeconfig'}"]
        listens = [f"--listen-agents=127.0.0.1:{AGENTS_PORT}", "--listen-extender=127.0.0.1:10298", "--hold-back=0"]
        program = LocalProgram(
            (*command, f"--config={MANIFEST}", *listens, f"--listen-metrics={_METRICS}"),
            self.folder / "logs" / "service.log",
        )
        async with run_program(program, "service") as service, httpx.AsyncClient(trust_env=False) as client:

            async def is_ready() -> bool:
                return (await client.get(f"http://{_METRICS}/readyz")).is_success

            await wait_until_ready(is_ready, self.clock, program.log)
            yield service

    def kube_scheduler(self, settings: Json) -> AbstractAsyncContextManager[RunningProgram]:
        """Run kube-scheduler with ``settings`` while the context is open, which it is before it is ready."""
        file = self.folder / "kube-scheduler.yaml"
        write_private(file, yaml.safe_dump(settings))
        users = [f"--{use}-kubeconfig={self.scheduler_kubeconfig}" for use in ("authentication", "authorization")]
        command = (str(self.programs.kubernetes / "kube-scheduler"), f"--config={file}", *users, "--v=1")
        return run_program(LocalProgram(command, self.folder / "logs" / "kube-scheduler.log"), "kube-scheduler")

    @property
    def scheduler_kubeconfig(self) -> str:
        """Path of kube-scheduler's kubeconfig."""
        return str(self.folder / "pki" / "scheduler.kubeconfig")


@asynccontextmanager
async def run_program(program: LocalProgram, name: str) -> AsyncIterator[RunningProgram]:
    """Run ``program`` while the context is open."""
    process = await start(program)
    try:
        yield RunningProgram(name, process.pid)
    finally:
        await end(process)


async def wait_until_ready(condition: Callable[[], Awaitable[bool]], clock: Clock, log: Path) -> None:
    """Wait until ``condition`` returns True. Raises ``BenchError`` with the end of ``log`` after a timeout."""

    async def is_ready() -> bool:
        # Expected during startup.
        with suppress(httpx.HTTPError, ApiError):
            return await condition()
        return False

    if not await poll_until(is_ready, clock, _TIMEOUT):
        raise BenchError(f"{log.stem} did not become ready within {_TIMEOUT:g} s: {_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-800:] if log.exists() else ""


def set_up_network() -> None:
    """Set up the loopback device of the new network namespace, with the API server's address."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{CONTROL_HOST}/32", "dev", "lo"], check=True)


@asynccontextmanager
async def control_plane(folder: Path, programs: Programs, clock: Clock) -> AsyncIterator[ControlPlane]:
    """A control plane without nodes, with our CRDs and our scheduler's RBAC objects."""
    pki, logs = Pki.make(folder / "pki", datetime.now(UTC)), folder / "logs"
    store = (str(programs.folders[ETCD.name] / "etcd"), *arguments.etcd(str(folder / "etcd")))
    server = (str(programs.kubernetes / "kube-apiserver"), *arguments.api_server(str(pki.folder)), _DELETE_WORKERS)
    write_private(folder / "kubeconfig", pki.admin_kubeconfig(INSIDE))
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(run_program(LocalProgram(command, logs / f"{name}.log"), name))
            for name, command in (("etcd", store), ("kube-apiserver", server))
        ]
        client = await stack.enter_async_context(client_from_kubeconfig(folder / "kubeconfig"))

        async def is_ready() -> bool:
            return bool(await client.raw_get("/readyz"))

        await wait_until_ready(is_ready, clock, logs / "kube-apiserver.log")
        await apply_crds(client, clock)
        write_private(folder / "service.kubeconfig", await _service_kubeconfig(client, pki))
        yield ControlPlane(folder, programs, client, clock, running)


async def _service_kubeconfig(client: ApiClient, pki: Pki) -> str:
    await client.create(NAMESPACES, "", {"metadata": {"name": NAMESPACE}})
    # The default accounts are missing because no controller manager runs.
    for name in (NAMESPACE, "kube-system"):
        await client.create(SERVICE_ACCOUNTS, name, {"metadata": {"name": "default"}})
    for item in manifest():
        resource = _APPLIED.get(text(item, "kind"))
        if resource is not None:
            await client.create(resource, text(item, "metadata", "namespace"), item)
    # Use the shipped RBAC rules, so that a missing rule fails the benchmark.
    account = ObjectName("kube-system", "autoscaling-scheduler")
    response = await client.post_subresource(SERVICE_ACCOUNTS, account, "token", {"spec": {"expirationSeconds": 7200}})
    token = text(child(response, "status"), "token")
    return kubeconfig(INSIDE, pki.signer.pair.certificate, account.name, token_login(token))
