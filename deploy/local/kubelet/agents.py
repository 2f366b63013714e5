"""The agent as a process: inside its VM's pod, or once for every node (S4.3). Only its environment differs."""

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

# Seconds. An hour is a projected token's default in Kubernetes, too.
_LIFETIME: Final = 3600
# A kubelet renews at four fifths of the lifetime as well.
_RENEW: Final = Seconds(_LIFETIME * 0.8)
_RETRY: Final = Seconds(2.0)


@dataclass(frozen=True, slots=True)
class Projection:
    """One token file of ``pod``: for ``audience``, or for the API server itself if that is empty."""

    pod: Json
    audience: str
    file: Path

    @property
    def account(self) -> ObjectName:
        """The service account that the pod runs as."""
        return ObjectName(name_of(self.pod).namespace, text(self.pod, "spec", "serviceAccountName") or "default")


async def project(client: ApiClient, projection: Projection) -> None:
    """Writes a fresh token. Raises ``ApiError`` or ``OSError``."""
    pod = projection.pod
    reference: Json = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod).name, "uid": uid_of(pod)}
    # The binding makes the token invalid as soon as this very pod is deleted.
    spec: Json = {"expirationSeconds": _LIFETIME, "boundObjectRef": reference}
    # Without audiences the API server issues the token for itself.
    if projection.audience:
        spec["audiences"] = [projection.audience]
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    await ensure_account(client, projection.account)
    answer = await client.post_subresource(SERVICE_ACCOUNTS, projection.account, "token", request)
    write_private(projection.file, text(answer, "status", "token"))


async def keep_projected(client: ApiClient, projection: Projection, clock: Clock) -> None:
    """Keeps renewing the token, at four fifths of its life; failures (no API server, full disk) are soon retried."""
    delay = _RENEW
    while True:
        await clock.sleep(delay)
        try:
            await project(client, projection)
            delay = _RENEW
        except (ApiError, OSError):
            delay = _RETRY


async def ensure_account(client: ApiClient, account: ObjectName) -> None:
    """Makes the service account if it is missing, as a cluster does for ``default``."""
    body: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account.name}}
    # Usually it exists already, or another pod's projection creates it at the same time.
    await client.ensure(SERVICE_ACCOUNTS, account.namespace, body)


AGENT_PORT: Final = 9101
API_PORT: Final = 6443
AGENTS_PORT: Final = 10299
EXPLAIN_TOKEN: Final = "explain-token"  # noqa: S105 - the name of a file in the cluster's folder


@dataclass(frozen=True, slots=True)
class AgentFiles:
    """The agent's own ``folder``, its policy, and the token that opens what it explains."""

    folder: Path
    policy: Path | None = None
    explain_token: Path | None = None


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One agent process: the pod whose identity it has, its place, its files, and what is particular to its form."""

    pod: Json
    network: PodNetwork
    files: AgentFiles
    form: dict[str, str]

    @property
    def projections(self) -> tuple[Projection, Projection]:
        """Its tokens: one for the scheduler, one for the API server."""
        return (
            Projection(self.pod, TOKEN_AUDIENCE, self.files.folder / "scheduler-token"),
            Projection(self.pod, "", self.files.folder / "api-token"),
        )

    @property
    def program(self) -> LocalProgram:
        """The process."""
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
        optional = {"EXPLAIN_TOKEN_FILE": self.files.explain_token, "AGENT_CONFIG": self.files.policy}
        environment |= {name: str(path) for name, path in optional.items() if path is not None}
        return LocalProgram(
            # -P keeps the working directory out of sys.path, so that the agent's modules are the installed ones.
            [sys.executable, "-P", "-m", "agent"],
            self.files.folder / "agent.log",
            self.network.enter,
            environment,
        )


def sidecar(pod: Json, vm: ObjectName, network: PodNetwork, files: AgentFiles) -> AgentRun:
    """The agent of one VM, in the network of its pod."""
    form = {
        "AGENT_MODE": "sidecar",
        "VM_NAMESPACE": vm.namespace,
        "VM_NAME": vm.name,
        "METRICS_URL": network.metrics_url,
        "DATABASE_URL": f"http://{network.guest_host}:{network.port_for(DAEMON_PORT)}{network.asked('/database')}",
        "MONITOR_URL": f"ws://{network.guest_host}:{network.port_for(MONITOR_PORT)}/monitor",
    }
    return AgentRun(pod, network, files, form)


def per_node(pod: Json, node: str, network: PodNetwork, files: AgentFiles) -> AgentRun:
    """The agent of all VMs on ``node``; it reaches its guests through their pods' addresses."""
    form = {
        "AGENT_MODE": "node",
        "NODE_NAME": node,
        # The agent fills in {pod_ip} itself, once for each of its VMs.
        "METRICS_URL": f"http://{{pod_ip}}:{network.port_for(METRICS_PORT)}/metrics",
        "DATABASE_URL": f"http://{{pod_ip}}:{network.port_for(DAEMON_PORT)}{network.asked('/database')}",
        "MONITOR_URL": f"ws://{{pod_ip}}:{network.port_for(MONITOR_PORT)}/monitor",
    }
    return AgentRun(pod, network, files, form)


async def run_agent(run: AgentRun, client: ApiClient, clock: Clock, supervisor: ProcessSupervisor) -> None:
    """Gives the agent its identity and keeps it running until cancelled. Raises as ``project`` does."""
    # The agent reads its tokens as it starts, so both files must exist before.
    for projection in run.projections:
        await project(client, projection)
    async with asyncio.TaskGroup() as tasks:
        for projection in run.projections:
            tasks.create_task(keep_projected(client, projection, clock))
        tasks.create_task(supervisor.run())
