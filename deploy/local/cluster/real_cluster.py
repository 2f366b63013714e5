"""A real Kubernetes cluster (B.9): control plane, and nodes with containerd and a kubelet.

All processes run in the cluster's own network namespaces and control groups.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from deploy.kube.client import ApiClient, client_from_kubeconfig
from deploy.local.cluster import control
from deploy.local.cluster.content import CRD_FOLDERS
from deploy.local.cluster.control_plane import run_until_stopped
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.progress import Progress, StepFailedError
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.kubernetes.machine.control_groups import make_group, remove_group
from deploy.local.kubernetes.machine.control_programs import API_SERVER, STORE, control_programs
from deploy.local.kubernetes.machine.credentials import INSIDE, Pki
from deploy.local.kubernetes.machine.node import KUBELET, Node, NodeError, NodePaths
from deploy.local.kubernetes.machine.survey import can_overcommit_cpus, machine_size
from deploy.local.kubernetes.plan import cluster_plan
from deploy.local.kubernetes.plan.node_settings import node_files
from deploy.local.kubernetes.programs.ensure import NoProgramsError, Programs, ensure_programs
from deploy.local.private_file import write_private
from deploy.local.process import LocalProgram, ProcessSupervisor, end, start
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.overlay.endpoints import client_claim
from deploy.neonvm.ports import NetworkError
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.resources import DEPLOYMENTS, IP_ADDRESSES, NODES, Resource
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock
from protocol.runtime.error_groups import innermost
from protocol.units import Instant, Seconds

_API_SERVICES: Final = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
_MANIFESTS: Final = Path(__file__).parents[1] / "kubernetes" / "manifests"
_ADD_ONS: Final = _MANIFESTS.with_name("add_ons")
_TIMEOUT: Final = Seconds(120.0)
_PAUSE: Final = Seconds(0.1)


def plan_of(name: str, spec: ClusterSpec) -> cluster_plan.ClusterPlan:
    """The plan for ``spec``; a node has at most the machine's memory. Raises ``SpecError``."""
    machine, overcommit = machine_size(), can_overcommit_cpus()
    nodes = [
        cluster_plan.NodePlan(
            node.name,
            number,
            cluster_plan.node_size(node.capacity, machine, overcommit_cpus=overcommit),
            node.labels,
            node.taints,
        )
        for number, node in enumerate(spec.node_specs, start=1)
    ]
    return cluster_plan.ClusterPlan(name, spec.kubernetes, nodes, machine, spec.add_ons)


class RealCluster:
    """One real Kubernetes cluster."""

    def __init__(self, folder: ClusterFolder, spec: ClusterSpec, progress: Progress) -> None:
        self._folder = folder
        self._plan = plan_of(folder.name, spec)
        self._progress = progress
        self._clock = SystemClock()
        self._network = NamespaceNetwork(folder.name, "each with a kubelet")
        self._supervisors: dict[str, ProcessSupervisor] = {}
        self._api_server = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Start the cluster, run it until ``stop`` is set, and remove everything. Raises ``StepFailedError``."""
        try:
            await run_until_stopped(self._bring_up, stop)
        # Task groups raise exception groups.
        except* NodeError as errors:
            first = innermost(errors)
            raise StepFailedError(str(first), str(first.log) if isinstance(first, NodeError) else "") from errors
        except* (NetworkError, NoProgramsError, OSError) as errors:
            raise StepFailedError(str(innermost(errors)), str(self._folder.log("cluster"))) from errors

    async def _bring_up(self, stack: AsyncExitStack) -> None:
        programs = await self._programs()
        await asyncio.to_thread(self._clear_state)
        await stack.enter_async_context(self._namespaces())
        pki = Pki.make(self._folder.real / "pki", datetime.now(UTC))
        nodes = [self._node(node, programs, pki) for node in self._plan.nodes]
        # Nodes boot while the control plane starts; their kubelets wait for the API server.
        await stack.enter_async_context(background_jobs(*(node.run(self._api_server) for node in nodes)))
        client = await self._control_plane(stack, programs, pki)
        await self._nodes_ready(client)
        # After all nodes are Ready: otherwise all pods would land on the first one.
        await self._add_ons(client, programs)
        await self._serve_control(stack, client, nodes)
        self._progress.ready()

    def _clear_state(self) -> None:
        shutil.rmtree(self._folder.real, ignore_errors=True)
        for log in self._folder.logs.glob("*.log"):
            # This is the process's standard error.
            if log != self._folder.log("cluster"):
                log.unlink()

    async def _programs(self) -> Programs:
        self._progress.begin("programs")
        programs = await ensure_programs(self._plan.version, self._plan.add_ons, self._progress.note)
        self._progress.done(f"Kubernetes {self._plan.version} in {programs.kubernetes}")
        return programs

    @asynccontextmanager
    async def _namespaces(self) -> AsyncIterator[None]:
        self._progress.begin("network")
        try:
            await self._network.up()
            for node in self._plan.nodes:
                await self._configure_network(node)
                make_group(self._plan.node_cgroup(node))
            # The control plane must reach pods: webhooks and aggregated APIs.
            await self._network.configure(None, *self._plan.routes(None))
            self._progress.done(self._network.description)
            yield
        finally:
            try:
                await self._network.down()
            finally:
                await asyncio.to_thread(remove_group, self._plan.cgroup)

    async def _configure_network(self, node: cluster_plan.NodePlan) -> None:
        """Set the node's address and routes; no route leads out of the cluster's namespaces."""
        await self._network.add_node(node.name)
        address = f"address add {node.address}/{cluster_plan.NODE_PREFIX} dev br0"
        routes = (f"route add default via {cluster_plan.CONTROL_HOST}", *self._plan.routes(node))
        await self._network.configure(node.name, address, *routes)

    def _node(self, node: cluster_plan.NodePlan, programs: Programs, pki: Pki) -> Node:
        folder = self._folder.nodes / node.name
        for name, content in node_files(self._plan, node).items():
            write_private(folder / "node" / name, content)
        pki.write_node(node, folder / "node")
        folders = {"kubernetes": programs.kubernetes, "containerd": programs.folders["containerd"]}
        enter = self._network.node_enter(node.name)
        return Node(node, NodePaths(folder, self._folder.logs, enter, folders, programs.images), self._clock)

    async def _control_plane(self, stack: AsyncExitStack, programs: Programs, pki: Pki) -> ApiClient:
        self._progress.begin("control plane")
        data, enter = self._folder.real / "etcd", self._network.control_enter()
        plane = control_programs(pki.folder, data, self._folder.logs, enter, programs)
        await self._start(stack, {name: plane.pop(name) for name in (STORE, API_SERVER)})
        port = await self._network.expose(cluster_plan.CONTROL_HOST, cluster_plan.API_PORT)
        write_private(self._folder.kubeconfig, pki.admin_kubeconfig(f"https://127.0.0.1:{port}"))
        write_private(self._folder.control_kubeconfig, pki.admin_kubeconfig(INSIDE))
        client = await stack.enter_async_context(client_from_kubeconfig(self._folder.kubeconfig))
        await self._until(f"the {API_SERVER} is not ready", API_SERVER, lambda: _api_ready(client))
        await self._start(stack, plane)
        # Before the kubelets register, so that labels, taints and pod CIDRs are as planned.
        for node in self._plan.nodes:
            await client.ensure(NODES, "", cluster_plan.node_object(node))
        self._api_server.set()
        self._progress.done(f"https://127.0.0.1:{port}")
        return client

    async def _apply(self, programs: Programs) -> None:
        log = self._folder.log("kubectl")
        crds = [file for name in self._plan.add_ons for file in programs.folders[name].glob("*.yaml")]
        add_ons = [_ADD_ONS / f"{name}.yaml" for name in self._plan.add_ons]
        files = [f"--filename={path}" for path in (CRD_FOLDERS[0], *crds, _MANIFESTS, *add_ons)]
        command = (str(programs.kubernetes / "kubectl"), f"--kubeconfig={self._folder.kubeconfig}", "apply")
        process = await start(LocalProgram((*command, "--server-side", *files), log))
        try:
            if await process.wait():
                raise StepFailedError("kubectl apply of the cluster's add-ons failed", str(log))
        finally:
            # Shielded: kubectl must not keep applying while the cluster is stopped.
            await asyncio.shield(end(process))

    async def _nodes_ready(self, client: ApiClient) -> None:
        self._progress.begin("nodes")

        async def unready_nodes() -> str:
            return ", ".join(cluster_plan.missing_nodes(self._plan, list((await client.list(NODES)).objects)))

        # Only one log can be shown; usually all nodes fail for the same reason.
        first = self._plan.nodes[0]
        await self._until("nodes are not Ready", f"{first.name}-{KUBELET}", unready_nodes)
        sizes = {str(node.size) for node in self._plan.nodes}
        self._progress.done(f"{len(self._plan.nodes)} with {' or '.join(sorted(sizes))} each")

    async def _add_ons(self, client: ApiClient, programs: Programs) -> None:
        """Apply our CRDs, DNS and the metrics server; return when they are available."""
        self._progress.begin("DNS and metrics")
        await self._apply(programs)

        async def not_available() -> str:
            deployments = (await client.list(DEPLOYMENTS, "kube-system")).objects
            services = (await client.list(_API_SERVICES)).objects
            return ", ".join(cluster_plan.unavailable([*deployments, *services]))

        await self._until("not available", "kube-scheduler", not_available)
        self._progress.done()

    async def _serve_control(self, stack: AsyncExitStack, client: ApiClient, nodes: list[Node]) -> None:
        by_name = {node.plan.name: node for node in nodes}

        def node_named(name: str) -> Node:
            if name not in by_name:
                raise LookupError(f"no node {name!r}; the nodes are {', '.join(by_name)}")
            return by_name[name]

        actions = {
            control.STOP_KUBELET: lambda node: node_named(node).stop(KUBELET),
            control.START_KUBELET: lambda node: node_named(node).start(KUBELET),
        }
        first_node = self._plan.nodes[0].name
        # Claim this machine's address on the VMs' network: no VM must get it.
        await client.ensure(IP_ADDRESSES, "", client_claim(cluster_plan.VM_VISITOR, first_node))
        exposed = control.ExposedCluster(self._network, first_node)
        stack.push_async_callback(exposed.close)
        dial = partial(self._network.connect, None)
        forwards = control.ClusterForwards(client, dial, exposed.expose)
        stack.push_async_callback(forwards.close)
        await stack.enter_async_context(
            control.control_endpoint(self._folder, forwards, lambda: self._status(nodes), actions)
        )

    def _status(self, nodes: list[Node]) -> control.ControlResponse:
        supervisors = dict(self._supervisors)
        for node in nodes:
            supervisors |= node.supervisors()
        parts = control.process_statuses(supervisors)
        # The first boot does not count as a restart.
        parts += [control.ProcessStatus(node.plan.name, node.pid, max(0, node.boots - 1)) for node in nodes]
        description = f"a real Kubernetes {self._plan.version}"
        return control.ControlResponse(
            network=self._network.description, guests=description, host=cluster_plan.CONTROL_HOST, parts=parts
        )

    async def _start(self, stack: AsyncExitStack, programs: dict[str, LocalProgram]) -> None:
        for name, program in programs.items():
            self._supervisors[name] = ProcessSupervisor(program, self._clock)
        await stack.enter_async_context(background_jobs(*(self._supervisors[name].run() for name in programs)))

    async def _until(self, problem: str, part: str, check: Callable[[], Awaitable[str]]) -> None:
        """Wait until ``check`` returns an empty text. Raises ``StepFailedError`` after a timeout."""
        deadline = Instant(self._clock.now() + _TIMEOUT)
        while True:
            try:
                unmet = await check()
            # Expected while the API server starts.
            except ApiError as error:
                unmet = str(error)
            if not unmet:
                return
            if self._clock.now() >= deadline:
                log = str(self._folder.log(part))
                raise StepFailedError(f"{problem} after {_TIMEOUT:g} s: {unmet}", log)
            await self._clock.sleep(_PAUSE)


async def _api_ready(client: ApiClient) -> str:
    await client.raw_get("/readyz")
    return ""
