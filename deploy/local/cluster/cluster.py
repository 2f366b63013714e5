"""Startup and shutdown of an embedded cluster, step by step.

The API server's objects stay in the cluster's folder: the next start finds the VMs and boots them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx2 as httpx
import msgspec

from deploy.kube.client import ApiClient
from deploy.local.cluster import control, control_plane
from deploy.local.cluster.content import apply_crds, create_vms, delete_other_nodes, register_node
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.guests import make_guests
from deploy.local.cluster.node_agents import NodeAgents
from deploy.local.cluster.progress import Progress, StepFailedError
from deploy.local.cluster.runtime import Runtime
from deploy.local.cluster.settings import agents_policy, guest_poll_interval
from deploy.local.cluster.spec import ClusterSpec, SpecError
from deploy.local.kubelet.sandbox import NodeDependencies
from deploy.local.private_file import secret_file
from deploy.local.process import LocalProgram, ProcessSupervisor
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.network.chooser import LocalNetwork, NetworkKind, choose_network
from deploy.neonvm.ports import GuestError, NetworkError
from deploy.neonvm.runner.resizer import LOCAL_INTERVALS
from deploy.neonvm.simulated.simulated_guest import SimulatedGuests
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock


class Cluster:
    """One embedded cluster. While it is up, it keeps the command ``recorder``, the history recorder, running."""

    def __init__(
        self, folder: ClusterFolder, spec: ClusterSpec, progress: Progress, recorder: Sequence[str] = ()
    ) -> None:
        self._recorder = recorder
        self._folder = folder
        self._spec = spec
        self._progress = progress
        self._clock = SystemClock()
        self._probes = control_plane.StartupProbes(self._clock, folder)
        self._supervisors: dict[str, ProcessSupervisor] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Start the cluster, run it until ``stop`` is set, and end all its processes. Raises ``StepFailedError``."""
        try:
            await control_plane.run_until_stopped(self._bring_up, stop)
        except (NetworkError, GuestError, SpecError) as error:
            raise StepFailedError(str(error), str(self._folder.log("cluster"))) from error

    async def _bring_up(self, stack: AsyncExitStack) -> None:
        nodes = self._spec.node_specs
        form, why = self._spec.agent_form
        network = await stack.enter_async_context(self._network())
        guests = await self._guests(network)
        client, host = await self._api_server(stack, network)
        self._progress.begin("scheduler")
        await self._scheduler(stack, network, host)
        if self._spec.groups:
            await self._start(stack, "groups", control_plane.groups(self._folder, network, host))
        self._progress.done()
        self._progress.begin("nodes")
        # The API server may have stored nodes of an earlier run.
        await delete_other_nodes(client, frozenset(node.name for node in nodes))
        for node in nodes:
            await network.add_node(node.name)
            await register_node(client, node, self._clock)
        poll_intervals = replace(LOCAL_INTERVALS, running=guest_poll_interval(self._spec.simulated))
        deps = NodeDependencies(client, network, guests, self._clock, self._folder.root, self._policy(), poll_intervals)
        extender = await self._extender(stack, network, host)
        runtime = Runtime(deps, extender, frozenset(node.name for node in nodes), sidecars=form == "sidecar")
        connect = partial(network.connect, None)
        agents = NodeAgents(deps, connect)
        await stack.enter_async_context(
            background_jobs(runtime.run(), *(agents.run(node.name) for node in nodes if form == "node"))
        )
        await runtime.synced()
        self._progress.done(f"{len(nodes)} with {self._spec.node_cpu} CPUs and {self._spec.node_memory} each")
        await self._vms(client)
        agents_run = f"agents run as {form}: {why}"
        response = control.ControlResponse(
            network=network.description, guests=guests.description, agents=agents_run, host=host
        )
        actions = {control.STOP_KUBELET: runtime.stop_kubelet, control.START_KUBELET: runtime.start_kubelet}
        forwards = control.ClusterForwards(client, connect, network.expose)
        stack.push_async_callback(forwards.close)
        status = partial(self._status, response, agents, runtime)
        await stack.enter_async_context(control.control_endpoint(self._folder, forwards, status, actions))
        self._progress.begin("agents")
        self._progress.done(f"{form}: {why}")
        if self._recorder:
            await self._start(stack, "history", LocalProgram(self._recorder, self._folder.log("history")))
        self._progress.ready()

    async def _extender(self, stack: AsyncExitStack, network: LocalNetwork, host: str) -> httpx.AsyncClient:
        # This process is outside the control plane's network, so it needs a loopback port.
        url = f"http://127.0.0.1:{await network.expose(host, control_plane.EXTENDER_PORT)}"
        headers = {"Authorization": f"Bearer {secret_file(self._folder.extender_token)}"}
        return await stack.enter_async_context(
            # trust_env=False: a proxy cannot reach the extender.
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=5.0)
        )

    def _policy(self) -> Path | None:
        """The agents' policy file; None for the default policy."""
        if self._spec.policy:
            return Path(self._spec.policy)
        text = agents_policy(self._spec.simulated)
        if not text:
            return None
        self._folder.agents_policy.write_text(text)
        return self._folder.agents_policy

    async def _vms(self, client: ApiClient) -> None:
        if count := self._spec.vms:
            self._progress.begin("VMs")
            await create_vms(client, count, self._clock, self._progress.note)
            self._progress.done(f"{count}; they start one after the other")

    def _status(self, base: control.ControlResponse, agents: NodeAgents, runtime: Runtime) -> control.ControlResponse:
        """``base`` with the current processes and unreadable objects."""
        by_node = {f"agent {name}": supervisor for name, supervisor in agents.supervisors.items()}
        parts = control.process_statuses({**self._supervisors, **by_node, **runtime.sidecars()})
        return msgspec.structs.replace(base, parts=parts, unreadable=runtime.unreadable())

    @asynccontextmanager
    async def _network(self) -> AsyncIterator[LocalNetwork]:
        self._progress.begin("network")
        try:
            kind = NetworkKind(self._spec.network)
        except ValueError:
            choices = ", ".join(kind.value for kind in NetworkKind)
            raise SpecError(f"the network must be one of {choices}, not {self._spec.network!r}") from None
        real = self._spec.guests == "qemu"
        network = await choose_network(kind, real_guests=real, cluster=self._folder.name)
        try:
            await network.up()
            self._progress.done(network.description)
            yield network
        finally:
            await network.down()

    async def _guests(self, network: LocalNetwork) -> QemuGuests | SimulatedGuests:
        self._progress.begin("guests")
        guests = await make_guests(self._spec, network, self._clock, self._progress.note)
        self._progress.done(guests.description)
        return guests

    async def _api_server(self, stack: AsyncExitStack, network: LocalNetwork) -> tuple[ApiClient, str]:
        self._progress.begin("API server")
        listeners = await control_plane.open_listeners(network)
        # Open in this process too, so that a restarted API server inherits it.
        stack.callback(listeners.for_pods.close)
        # `for_api_server` waits for this file, so remove the one of an earlier run.
        self._folder.kubeconfig.unlink(missing_ok=True)
        supervisor = await self._start(stack, "api-server", control_plane.api_server(self._folder, listeners))
        client = await stack.enter_async_context(await self._probes.for_api_server(supervisor))
        count = await apply_crds(client, self._clock)
        self._progress.done(f"https://127.0.0.1:{listeners.tls_port}, {count} CRDs")
        return client, listeners.host

    async def _scheduler(self, stack: AsyncExitStack, network: LocalNetwork, host: str) -> None:
        supervisor = await self._start(stack, "scheduler", control_plane.scheduler(self._folder, network, host))
        probes = f"http://127.0.0.1:{await network.expose(host, control_plane.PROBES_PORT)}"
        await self._probes.for_scheduler(supervisor, probes)

    async def _start(self, stack: AsyncExitStack, name: str, program: LocalProgram) -> ProcessSupervisor:
        # The error of a failed step refers to this log, so it should have no old lines.
        program.log.unlink(missing_ok=True)
        supervisor = self._supervisors[name] = ProcessSupervisor(program, self._clock)
        await stack.enter_async_context(background_jobs(supervisor.run()))
        return supervisor
