"""Access to a cluster for commands: the local cluster, or any other by its kubeconfig.

Queries return None for a program that cannot be reached, and ``request_errors`` contains the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

import httpx2 as httpx
import msgspec

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from deploy.kube.kubectl import ForwardingError, Kubectl
from deploy.local.cluster.control import ControlError, ask_cluster
from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, JsonObject, items, labels_of, name_of, pod_phase, text
from protocol.kubernetes.resources import LEASES, PODS
from protocol.messages import ObjectName
from protocol.names import AGENT_CONTAINER
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import token_in
from protocol.runtime.keep_alive import no_cookies
from protocol.units import Seconds
from scheduler_plugin.databases import database_name, is_pod
from scripts.autoscale.clusters import ReachedCluster

AGENT_PORT: Final = 9101
PROBES_PORT: Final = 10297
GROUPS_PORT: Final = 10294
SCHEDULER: Final = "autoscaling-scheduler"
GROUPS: Final = "autoscaling-groups"
AGENT: Final = "autoscaling-agent"
"""Names of programs, as in the label of their pods."""

EXPLAINS: Final = {SCHEDULER: (PROBES_PORT, "autoscaling-scheduler"), GROUPS: (GROUPS_PORT, "autoscale-groups")}
"""The port and Lease of each program that serves explanations."""

FORWARDED_WITHIN: Final = Seconds(90.0)

NAME_LABEL: Final = "app.kubernetes.io/name"
_FIRST_LIST: Final = 10.0
"""Seconds that the first list of pods may take."""


class SiteError(Exception):
    """The cluster, or something in it, cannot be reached; the message contains a remedy."""


class Site(Protocol):
    """A cluster whose API server and programs can be queried."""

    @property
    def title(self) -> str:
        """The cluster's name in output."""

    @property
    def client(self) -> ApiClient:
        """A client of the cluster's API server."""

    @property
    def request_errors(self) -> Mapping[str, str]:
        """Reason why ``AGENT``, ``SCHEDULER`` or ``GROUPS`` did not respond to the last request; empty if it did."""

    async def of_scheduler(self, path: str) -> Json | None:
        """The scheduler's JSON at ``path``; None if it cannot be reached."""

    async def of_groups(self, path: str) -> Json | None:
        """The groups program's JSON at ``path``; None if it cannot be reached."""

    async def of_agent(self, pod: Json, path: str) -> Json | None:
        """The JSON at ``path`` of the agent in ``pod``; None if it cannot be reached."""

    def into_vm(self, vm: Json, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """A context with a host and port on this machine that forward to a VM's port. Raises ``SiteError``."""


class LocalSite:
    """A running local cluster with the embedded API server."""

    def __init__(self, folder: ClusterFolder, client: ApiClient, host: str, http: httpx.AsyncClient) -> None:
        self._folder = folder
        self._host = host
        self._http = http
        self.client = client
        self.request_errors: dict[str, str] = {}
        self.title = f"local cluster {folder.name!r}"

    async def of_scheduler(self, path: str) -> Json | None:
        """Through a loopback port that forwards to the scheduler."""
        return await self._json(SCHEDULER, self._host, PROBES_PORT, path)

    async def of_groups(self, path: str) -> Json | None:
        """Through a loopback port that forwards to the groups program."""
        return await self._json(GROUPS, self._host, GROUPS_PORT, path)

    async def of_agent(self, pod: Json, path: str) -> Json | None:
        """Through a loopback port that forwards to the pod."""
        return await self._json(AGENT, text(pod, "status", "podIP"), AGENT_PORT, path)

    @asynccontextmanager
    async def into_vm(self, vm: Json, port: int) -> AsyncIterator[tuple[str, int]]:
        """Through a loopback port that forwards to the VM's overlay address."""
        yield "127.0.0.1", await exposed_vm(self._folder, vm, port)

    async def _json(self, program: str, target: str, port: int, path: str) -> Json | None:
        # A pod without an address is starting; asking would only time out.
        self.request_errors[program] = "" if target else "its pod has no address yet"
        if not target:
            return None
        try:
            # The cluster's process opens a loopback port that forwards to the target.
            exposed = (await ask_cluster(self._folder, "expose", target, port)).port
            # Read each time: a new cluster of the same name has another token.
            token = token_in(self._folder.explain_token)
            answer = await self._http.get(
                f"http://127.0.0.1:{exposed}{path}", headers={"Authorization": f"Bearer {token}"}
            )
            return _decoded(answer.raise_for_status().content)
        except (ControlError, httpx.HTTPError) as error:
            # Some of httpx's errors have no message.
            self.request_errors[program] = str(error) or repr(error)
            return None


class RemoteSite:
    """Any cluster with a kubeconfig, including a local one with real Kubernetes."""

    def __init__(self, cluster: ReachedCluster, client: ApiClient) -> None:
        self._cluster = cluster
        self.client = client
        self.title = cluster.title
        self.request_errors: dict[str, str] = {}

    async def of_scheduler(self, path: str) -> Json | None:
        """By port-forward to the leader's pod."""
        return await self._of_leader(SCHEDULER, path)

    async def of_groups(self, path: str) -> Json | None:
        """By port-forward to the leader's pod."""
        return await self._of_leader(GROUPS, path)

    async def of_agent(self, pod: Json, path: str) -> Json | None:
        """By port-forward to the pod."""
        self.request_errors[AGENT] = ""
        return await self._of_pod(AGENT, name_of(pod), AGENT_PORT, path)

    async def _of_leader(self, program: str, path: str) -> Json | None:
        """The answer of the replica that holds the program's Lease; of any replica if none is known to hold it."""
        port, lease = EXPLAINS[program]
        try:
            pods = (await self.client.list(PODS, label_selector=f"{NAME_LABEL}={program}")).objects
        except ApiError as error:
            self.request_errors[program] = str(error)
            return None
        running = [name_of(replica) for replica in pods if pod_phase(replica) == "Running"]
        self.request_errors[program] = "" if running else f"no pod with {NAME_LABEL}={program} runs"
        # The Lease matters only if there are several replicas.
        holder = await self._holder(running, lease) if len(running) > 1 else ""
        # The holder first, then the others in case the Lease is out of date.
        for replica in sorted(running, key=lambda replica: not holder.startswith(f"{replica.name}-")):
            if answer := await self._of_pod(program, replica, port, path):
                # Replicas tried before may have left their reason.
                self.request_errors[program] = ""
                return answer
        return None

    async def _holder(self, pods: Sequence[ObjectName], lease: str) -> str:
        try:
            lease_object = await self.client.get(LEASES, ObjectName(pods[0].namespace, lease))
        except ApiError:
            # Without the permission to read Leases, try every replica.
            return ""
        return text(lease_object, "spec", "holderIdentity")

    async def _of_pod(self, program: str, pod: ObjectName, port: int, path: str) -> Json | None:
        try:
            # Port-forwarded requests need no token.
            return _decoded(await self.client.pod_get(pod, port, path))
        except ApiError as error:
            self.request_errors[program] = f"pod {pod}: {error}"
            return None

    @asynccontextmanager
    async def into_vm(self, vm: Json, port: int) -> AsyncIterator[tuple[str, int]]:
        """Through ``kubectl port-forward`` to the VM's pod, which forwards the port to the VM.

        In a cluster on this machine, through a loopback port to the VM's overlay address, which survives a migration.
        """
        if self._cluster.folder is not None:
            yield "127.0.0.1", await exposed_vm(self._cluster.folder, vm, port)
            return
        kubectl = Kubectl(self._cluster.kubectl(), self._cluster.kubectl_environment, FORWARDED_WITHIN)
        pod = f"pod/{text(vm, 'status', 'podName')}"
        try:
            async with kubectl.forward(name_of(vm).namespace, pod, [port]) as ports:
                yield "127.0.0.1", ports[port]
        except ForwardingError as error:
            raise SiteError(str(error)) from None


async def exposed_vm(folder: ClusterFolder, vm: Json, port: int) -> int:
    """Opens a loopback port that forwards to a VM or pod of a local cluster. Raises ``ControlError``."""
    address = text(vm, "status", "podIP" if is_pod(vm) else "extraNetIP")
    return (await ask_cluster(folder, "expose", address, port)).port


def _decoded(body: bytes) -> Json | None:
    try:
        return msgspec.json.decode(body, type=Json)
    except (ValueError, RecursionError):
        return None


@asynccontextmanager
async def open_site(cluster: ReachedCluster) -> AsyncIterator[Site]:
    """Opens access to a cluster. Raises ``CredentialsError``, and ``ControlError`` if a local cluster has ended."""
    async with cluster.client() as client:
        if cluster.folder is None or not cluster.is_embedded:
            yield RemoteSite(cluster, client)
        else:
            # Requests to this machine must not use a proxy from the environment.
            async with httpx.AsyncClient(trust_env=False, timeout=3.0, cookies=no_cookies()) as http:
                host = (await ask_cluster(cluster.folder, "status")).host
                yield LocalSite(cluster.folder, client, host, http)


@dataclass(frozen=True, slots=True)
class SitePods:
    """Pods by name, and the pods of node agents by node."""

    by_name: Mapping[ObjectName, Json]
    agents: Mapping[str, Json]

    @classmethod
    def of(cls, pods: Iterable[Json]) -> SitePods:
        """Indexes pods, including VM pods and agent pods."""
        by_name = {name_of(pod): pod for pod in pods}
        return cls(by_name, _by_node(by_name.values()))


def _by_node(pods: Iterable[Json]) -> dict[str, Json]:
    return {text(pod, "spec", "nodeName"): pod for pod in pods if _is_agent(pod)}


def _is_agent(pod: Json) -> bool:
    return labels_of(pod).get(NAME_LABEL) == AGENT


async def agent_response(site: Site, vm: Json, pods: SitePods, path: str = "/explain") -> Json | None:
    """Queries the agent of ``vm``, a VM or pod database, at ``path``: its sidecar, or the agent of its node."""
    # Only the pod in the VM's own namespace: one of the same name elsewhere may belong to anyone.
    pod = vm if is_pod(vm) else pods.by_name.get(ObjectName(name_of(vm).namespace, text(vm, "status", "podName")))
    if pod is None:
        return None
    agent = pods.agents.get(text(pod, "spec", "nodeName"))
    # A pod database has no sidecar. Nor has a VM on a node with an agent, unless its pod says so: otherwise the request
    # would fail, or reach the guest.
    has_own = not is_pod(vm) and (agent is None or _has_sidecar(pod))
    if has_own and (answer := await site.of_agent(pod, path)):
        return answer
    # A node's agent serves many VMs, so the path names the VM.
    return None if agent is None else await site.of_agent(agent, f"{path}/{database_name(vm)}")


def _has_sidecar(pod: Json) -> bool:
    # A native sidecar is an init container.
    containers = (*items(pod, "spec", "containers"), *items(pod, "spec", "initContainers"))
    return any(text(container, "name") == AGENT_CONTAINER for container in containers)


class SiteSources:
    """See ``Sources``. Agents are found by a watch of all pods: run ``pods.run`` in a task."""

    def __init__(self, site: Site, clock: Clock) -> None:
        self._site = site
        self._agents: dict[str, Json] | None = None
        self._listed_by = asyncio.get_running_loop().time() + _FIRST_LIST
        self.pods = Informer(site.client, PODS, clock)
        self.pods.listen(self._pod_changed)

    @property
    def index(self) -> SitePods:
        """The pods that the watch has seen so far."""
        if self._agents is None:
            self._agents = _by_node(self.pods.objects.values())
        return SitePods(self.pods.objects, self._agents)

    def _pod_changed(self, change: ObjectChange) -> None:
        if _is_agent(change.after or change.before or {}):
            self._agents = None

    async def of_scheduler(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._site.of_scheduler(path)

    async def of_groups(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._site.of_groups(path)

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """See ``Sources``."""
        # One deadline for all requests: without the permission to list pods, only the first ones wait.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._listed_by):
                await self.pods.synced.wait()
        return await agent_response(self._site, dict(vm), self.index)
