"""Processes of the embedded control plane: command lines, and readiness checks."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx

from deploy.kube.client import ApiClient, client_from_kubeconfig
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.settings import scheduler_settings, with_extender_token
from deploy.local.kubeconfigs import kubeconfig, token_login
from deploy.local.kubelet.agents import AGENT_PORT, AGENTS_PORT, API_PORT
from deploy.local.private_file import secret_file, write_private
from deploy.local.process import LocalProgram, ProcessSupervisor
from deploy.neonvm.network.chooser import LocalNetwork
from deploy.neonvm.network.sockets import free_port
from protocol.kubernetes.api import ApiError
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from protocol.yaml_text import YamlError

EXTENDER_PORT: Final = 10298
PROBES_PORT: Final = 10297
GROUPS_PORT: Final = 10294
HOLD_BACK: Final = 1
"""Seconds before a new scheduler decides anything; here, its predecessor's Bindings finish in milliseconds."""

_TIMEOUT: Final = Seconds(60.0)
_PAUSE: Final = Seconds(0.05)


@dataclass(frozen=True, slots=True)
class ApiServerListeners:
    """Listeners of the API server: a socket in the cluster's network for pods, a loopback port with TLS for users."""

    for_pods: socket.socket
    tls_port: int

    @property
    def host(self) -> str:
        """The control plane's address in the cluster's network."""
        host: str = self.for_pods.getsockname()[0]
        return host


async def open_listeners(network: LocalNetwork) -> ApiServerListeners:
    """Open the API server's socket in the cluster's network and pick a free loopback port."""
    return ApiServerListeners(await network.listen(None, API_PORT), free_port())


def api_server(folder: ClusterFolder, listeners: ApiServerListeners) -> LocalProgram:
    """The API server's process."""
    arguments = [
        *("--data-dir", str(folder.api_data)),
        *("--fd", str(listeners.for_pods.fileno())),
        *("--listen-tls", f"127.0.0.1:{listeners.tls_port}"),
        *("--kubeconfig-out", str(folder.kubeconfig)),
        *("--admin-token-file", str(folder.root / "admin-token")),
    ]
    command = [sys.executable, "-P", "-m", "deploy.local.apiserver", *arguments]
    # The socket is inherited, so a restarted API server keeps its address.
    return LocalProgram(command, folder.log("api-server"), inherit=(listeners.for_pods.fileno(),))


def scheduler(folder: ClusterFolder, network: LocalNetwork, host: str) -> LocalProgram:
    """The scheduler's process. Writes its kubeconfig, and its settings if they do not exist."""
    _write_settings(folder)
    token = (folder.root / "admin-token").read_text().strip()
    # Plain HTTP: other users of the machine cannot sniff the cluster's network.
    login = kubeconfig(f"http://{host}:{network.port_for(API_PORT)}", b"", "control-plane", token_login(token))
    write_private(folder.control_kubeconfig, login)
    arguments = [
        *("--config", str(folder.scheduler_config)),
        *("--kubeconfig", str(folder.control_kubeconfig)),
        f"--hold-back={HOLD_BACK}",
        f"--listen-agents={host}:{network.port_for(AGENTS_PORT)}",
        f"--listen-extender={host}:{network.port_for(EXTENDER_PORT)}",
        f"--listen-metrics={host}:{network.port_for(PROBES_PORT)}",
        f"--explain-token={folder.explain_token}",
    ]
    command = [sys.executable, "-P", "-m", "scheduler_plugin", *arguments]
    return LocalProgram(command, folder.log("scheduler"), network.control_enter())


def groups(folder: ClusterFolder, network: LocalNetwork, host: str) -> LocalProgram:
    """The groups controller's process; it uses the scheduler's kubeconfig."""
    # Its own recommender: a local cluster has no HPA controller and no VPA.
    if not folder.groups_settings.exists():
        folder.groups_settings.write_text("recommender: agents\n")
    arguments = [
        *("--settings", str(folder.groups_settings)),
        *("--kubeconfig", str(folder.control_kubeconfig)),
        f"--listen={host}:{network.port_for(GROUPS_PORT)}",
        f"--agents-port={network.port_for(AGENT_PORT)}",
        f"--explain-token={folder.explain_token}",
    ]
    command = [sys.executable, "-P", "-m", "scheduler_plugin.groups", *arguments]
    return LocalProgram(command, folder.log("groups"), network.control_enter())


def _write_settings(folder: ClusterFolder) -> None:
    secret_file(folder.extender_token)
    secret_file(folder.explain_token)
    if not folder.scheduler_config.exists():
        folder.scheduler_config.write_text(scheduler_settings())
        return
    with suppress(YamlError):  # the scheduler reports errors in the file
        settings = folder.scheduler_config.read_text()
        if (updated := with_extender_token(settings)) != settings:
            folder.scheduler_config.write_text(updated)


@dataclass(frozen=True, slots=True)
class StartupProbes:
    """Waits until processes are ready."""

    clock: Clock
    folder: ClusterFolder

    async def until(self, part: str, supervisor: ProcessSupervisor, check: Callable[[], Awaitable[bool]]) -> None:
        """Wait until ``check`` returns True. Raises ``StepFailedError`` if the process ends or takes too long."""
        deadline, log = Instant(self.clock.now() + _TIMEOUT), str(self.folder.log(part))
        while not await check():
            # The supervisor restarts it, but the user should see the error.
            if supervisor.restarts:
                raise StepFailedError(f"the {part} exited during startup", log)
            if self.clock.now() >= deadline:
                raise StepFailedError(f"the {part} was not ready after {_TIMEOUT:g} s", log)
            await self.clock.sleep(_PAUSE)

    async def for_api_server(self, supervisor: ProcessSupervisor) -> ApiClient:
        """Wait for the API server; return a client of it."""
        kubeconfig = self.folder.kubeconfig

        async def written() -> bool:
            return kubeconfig.exists()

        await self.until("api-server", supervisor, written)
        client = client_from_kubeconfig(kubeconfig, is_busy=True)

        async def ready() -> bool:
            try:
                await client.raw_get("/readyz")
            except ApiError:
                return False
            return True

        await self.until("api-server", supervisor, ready)
        return client

    async def for_scheduler(self, supervisor: ProcessSupervisor, probes: str) -> None:
        """Wait until the scheduler, with probes at URL ``probes``, is ready: it has rebuilt its ledger."""

        async def ready() -> bool:
            try:
                return (await http.get("/readyz")).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False

        # trust_env=False: a proxy cannot reach the cluster's network.
        async with httpx.AsyncClient(base_url=probes, trust_env=False, timeout=2.0) as http:
            await self.until("scheduler", supervisor, ready)


async def run_until_stopped(bring_up: Callable[[AsyncExitStack], Awaitable[None]], stop: asyncio.Event) -> None:
    """Bring a cluster up, wait until ``stop`` is set, and undo the steps in reverse order."""
    async with AsyncExitStack() as stack:
        try:
            await bring_up(stack)
            await stop.wait()
        finally:
            stop.set()  # from now on, a signal must not interrupt the cleanup
