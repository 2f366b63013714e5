"""The embedded cluster's controllers: scheduling loop, NeonVM controllers, node lifecycle, kubelets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx2 as httpx

from deploy.kube.events import EventRecorder
from deploy.kube.informer import Informer
from deploy.local.kubelet.kubelet import Kubelet
from deploy.local.kubelet.node_lifecycle import NodeLifecycle, PodGarbageCollector
from deploy.local.kubelet.sandbox import NodeDependencies
from deploy.local.process import ProcessSupervisor
from deploy.local.scheduling.extender import Extender
from deploy.local.scheduling.loop import SchedulingLoop
from deploy.neonvm.controller.controller import NeonVmController
from deploy.neonvm.dependencies import ControllerDependencies, unchanged_pod
from deploy.neonvm.migration.migration_controller import MigrationController
from deploy.neonvm.objects.pods import with_agent
from protocol.kubernetes.resources import MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName


class Runtime:
    """All controllers of an embedded cluster. ``run`` ends every guest when it is cancelled."""

    def __init__(
        self, deps: NodeDependencies, extender: httpx.AsyncClient, nodes: frozenset[str], *, sidecars: bool
    ) -> None:
        client, clock = deps.client, deps.clock
        kinds = (PODS, NODES, VIRTUAL_MACHINES, MIGRATIONS)
        self._caches = [Informer(client, kind, clock) for kind in kinds]
        pods, node_objects, vms, migrations = self._caches
        self._kubelet = Kubelet(nodes, pods, vms, replace(deps, changed=self._guest_changed))
        self._pod_gc = PodGarbageCollector(client, node_objects, pods, clock)
        self._nodes = nodes
        self._node_lifecycle = NodeLifecycle(client, node_objects, clock)
        controllers = ControllerDependencies(
            client=client,
            vms=vms,
            pods=pods,
            migrations=migrations,
            guest_host=self._kubelet,
            events=EventRecorder(client, "neonvm-controller", clock),
            clock=clock,
            form=with_agent if sidecars else unchanged_pod,
        )
        self._controller = NeonVmController(controllers)
        self._migrations = MigrationController(controllers)
        self._loop = SchedulingLoop(client, pods, node_objects, Extender(extender), clock)

    async def run(self) -> None:
        """Run all controllers until cancelled; an error in one ends them all."""
        async with asyncio.TaskGroup() as tasks:
            for cache in self._caches:
                tasks.create_task(cache.run())
            controllers = (self._controller, self._migrations, self._node_lifecycle, self._pod_gc)
            for part in (self._kubelet, *controllers, self._loop):
                tasks.create_task(part.run())

    async def synced(self) -> None:
        """Wait until every cache is filled."""
        for cache in self._caches:
            await cache.synced.wait()

    def stop_kubelet(self, node: str) -> None:
        """Stop the kubelet of ``node``; its guests keep running. Raises ``LookupError``."""
        self._check_node(node)
        self._kubelet.stop_node(node)
        self._node_lifecycle.kubelet_stopped(node)

    def start_kubelet(self, node: str) -> None:
        """Start the kubelet of ``node`` again. Raises ``LookupError``."""
        self._check_node(node)
        self._node_lifecycle.kubelet_started(node)
        self._kubelet.start_node(node)

    def _check_node(self, node: str) -> None:
        if node not in self._nodes:
            raise LookupError(f"no node {node!r}; the nodes are {', '.join(sorted(self._nodes))}")

    def unreadable(self) -> list[str]:
        """Objects that cannot be read, with the reason."""
        return [f"{name}: {bad.reason}" for cache in self._caches for name, bad in sorted(cache.unreadable.items())]

    def sidecars(self) -> dict[str, ProcessSupervisor]:
        """The supervisors of the sidecar agents, by name."""
        sandboxes = sorted(self._kubelet.sandboxes.items())
        return {f"agent {pod}": sandbox.agent for pod, sandbox in sandboxes if sandbox.agent is not None}

    def _guest_changed(self, vm: ObjectName) -> None:
        self._controller.enqueue(vm)
        self._migrations.enqueue(vm)
