"""Agent processes: one per VM (sidecar) or per node (S4.3), which differ only in their environment."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.kube.client import ApiClient
from deploy.local.private_file import write_private
from deploy.local.process import LocalProgram, ProcessSupervisor
from deploy.neonvm.addressing import DAEMON_PORT, METRICS_PORT, MONITOR_PORT
from deploy.neonvm.ports import PodNetwork
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, name_of, text, uid_of
from protocol.kubernetes.resources import SERVICE_ACCOUNTS
from protocol.messages import ObjectName
from protocol.names import TOKEN_AUDIENCE
from protocol.runtime.clock import Clock
from protocol.units import Seconds

# In seconds, Kubernetes' default for projected tokens.
_LIFETIME: Final = 3600
# Like a kubelet.
_RENEW: Final = Seconds(_LIFETIME * 0.8)
_RETRY: Final = Seconds(2.0)


@dataclass(frozen=True, slots=True)
class Projection:
    """A projected token file of ``pod`` for ``audience`` (empty: the API server)."""

    pod: Json
    audience: str
    file: Path

    @property
    def account(self) -> ObjectName:
        """The pod's service account."""
        return ObjectName(name_of(self.pod).namespace, text(self.pod, "spec", "serviceAccountName") or "default")


async def project(client: ApiClient, projection: Projection) -> None:
    """Write a new token. Raises ``ApiError`` or ``OSError``."""
    pod = projection.pod
    reference: Json = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod).name, "uid": uid_of(pod)}
    # Bound to the pod: the token becomes invalid when the pod is deleted.
    spec: Json = {"expirationSeconds": _LIFETIME, "boundObjectRef": reference}
    if projection.audience:
        spec["audiences"] = [projection.audience]
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    await ensure_account(client, projection.account)
    response = await client.post_subresource(SERVICE_ACCOUNTS, projection.account, "token", request)
    write_private(projection.file, text(response, "status", "token"))


async def keep_projected(client: ApiClient, projection: Projection, clock: Clock) -> None:
    """Renew the token at 80% of its lifetime; retry failures (API server down, disk full) after two seconds."""
    delay = _RENEW
    while True:
        await clock.sleep(delay)
        try:
            await project(client, projection)
            delay = _RENEW
        except (ApiError, OSError):
            delay = _RETRY


async def ensure_account(client: ApiClient, account: ObjectName) -> None:
    """Create the service account if it does not exist."""
    body: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account.name}}
    await client.ensure(SERVICE_ACCOUNTS, account.namespace, body)


AGENT_PORT: Final = 9101
API_PORT: Final = 6443
AGENTS_PORT: Final = 10299
EXPLAIN_TOKEN: Final = "explain-token"  # noqa: S105 - the name of a file in the cluster's folder


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One agent process: the pod whose identity it has, the pod's network, ``form``, and its files.

    ``form`` is the environment of a sidecar or of a node's agent. ``explain_token`` is the file with the bearer token
    of its ``/explain``.
    """

    pod: Json
    network: PodNetwork
    form: dict[str, str]
    folder: Path
    policy: Path | None = None
    explain_token: Path | None = None

    @property
    def projections(self) -> tuple[Projection, Projection]:
        """The agent's tokens, for the scheduler and for the API server."""
        return (
            Projection(self.pod, TOKEN_AUDIENCE, self.folder / "scheduler-token"),
            Projection(self.pod, "", self.folder / "api-token"),
        )

    @property
    def program(self) -> LocalProgram:
        """The agent's command and environment."""
        for_scheduler, for_api = self.projections
        host = self.network.api_host
        environment = {
            **self.form,
            "POD_NAMESPACE": name_of(self.pod).namespace,
            "POD_NAME": name_of(self.pod).name,
            "SCHEDULER_URL": f"http://{host}:{self.network.port_for(AGENTS_PORT)}",
            "SCHEDULER_TOKEN_FILE": str(for_scheduler.file),
            "KUBERNETES_API_URL": f"http://{host}:{self.network.port_for(API_PORT)}",
            "KUBERNETES_TOKEN_FILE": str(for_api.file),
            "AGENT_LISTEN": f"{self.network.address}:{self.network.port_for(AGENT_PORT)}",
        }
        optional = {"EXPLAIN_TOKEN_FILE": self.explain_token, "AGENT_CONFIG": self.policy}
        environment |= {name: str(path) for name, path in optional.items() if path is not None}
        return LocalProgram(
            # -P: do not import modules from the working directory.
            [sys.executable, "-P", "-m", "agent"],
            self.folder / "agent.log",
            self.network.enter,
            environment,
        )


def sidecar_form(vm: ObjectName, network: PodNetwork) -> dict[str, str]:
    """Environment of the agent of one VM, in its pod's network."""
    name = {"VM_NAMESPACE": vm.namespace, "VM_NAME": vm.name}
    return {"AGENT_MODE": "sidecar", **name, **_guest_urls(network.guest_host, network)}


def node_form(node: str, network: PodNetwork) -> dict[str, str]:
    """Environment of the agent of all VMs on ``node``; it reaches guests at their pods' IPs."""
    # The agent fills in {pod_ip} for each VM.
    return {"AGENT_MODE": "node", "NODE_NAME": node, **_guest_urls("{pod_ip}", network)}


def _guest_urls(host: str, network: PodNetwork) -> dict[str, str]:
    return {
        "METRICS_URL": f"http://{host}:{network.port_for(METRICS_PORT)}/metrics",
        "DATABASE_URL": f"http://{host}:{network.port_for(DAEMON_PORT)}{network.daemon_path('/database')}",
        "MONITOR_URL": f"ws://{host}:{network.port_for(MONITOR_PORT)}/monitor",
    }


async def run_agent(run: AgentRun, client: ApiClient, clock: Clock, supervisor: ProcessSupervisor) -> None:
    """Write the agent's tokens and keep it running until cancelled. Raises like ``project``."""
    # The agent reads both tokens when it starts.
    for projection in run.projections:
        await project(client, projection)
    async with asyncio.TaskGroup() as tasks:
        for projection in run.projections:
            tasks.create_task(keep_projected(client, projection, clock))
        tasks.create_task(supervisor.run())
