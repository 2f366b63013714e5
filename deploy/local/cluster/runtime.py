"""The cluster's own controllers in one process: scheduling loop, NeonVM controller, kubelets."""

from __future__ import annotations

import asyncio
import random
import string
from dataclasses import dataclass
from pathlib import Path

import httpx

from deploy.local.clock import Clock
from deploy.local.cluster.control import Part
from deploy.local.kube.client import ApiClient
from deploy.local.kube.events import Events
from deploy.local.kube.informer import Informer
from deploy.local.kube.objects import NODES, PODS, VIRTUAL_MACHINES
from deploy.local.kubelet.kubelet import Kubelet
from deploy.local.kubelet.sandbox import NodeMeans
from deploy.local.neonvm.controller import Means, NeonVmController
from deploy.local.ports import ClusterNetwork, Guests
from deploy.local.scheduling.extender import Extender
from deploy.local.scheduling.loop import Chance, SchedulingLoop, Watched
from protocol.messages import ObjectName

_SUFFIX_LETTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True, slots=True)
class RuntimeMeans:
    """What the controllers work with."""

    client: ApiClient
    extender: httpx.AsyncClient
    network: ClusterNetwork
    guests: Guests
    clock: Clock
    state: Path
    nodes: frozenset[str]
    sidecars: bool
    policy: Path | None


class Runtime:
    """The controllers, put together. ``run`` works until cancelled, and then ends every guest."""

    def __init__(self, means: RuntimeMeans) -> None:
        client, clock = means.client, means.clock
        self._pods, self._nodes, self._vms = (Informer(client, kind, clock) for kind in (PODS, NODES, VIRTUAL_MACHINES))
        self.node_means = NodeMeans(
            client, means.network, means.guests, clock, means.state, means.policy, self._guest_changed
        )
        self._kubelet = Kubelet(means.nodes, self._pods, self._vms, self.node_means)
        self._controller = NeonVmController(
            Means(
                client,
                self._vms,
                self._pods,
                self._kubelet,
                Events(client, "neonvm-controller", clock),
                clock,
                lambda: "".join(random.choices(_SUFFIX_LETTERS, k=5)),
                means.sidecars,
            )
        )
        self._loop = SchedulingLoop(
            Watched(self._pods, self._nodes),
            Extender(means.extender),
            Events(client, "autoscale-scheduler", clock),
            Chance(clock, random.random, random.choice),
        )

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (self._pods, self._nodes, self._vms):
                tasks.create_task(informer.run())
            tasks.create_task(self._kubelet.run())
            tasks.create_task(self._controller.run())
            tasks.create_task(self._loop.run())

    async def synced(self) -> None:
        """Returns when every cache is filled."""
        for informer in (self._pods, self._nodes, self._vms):
            await informer.synced.wait()

    def parts(self) -> list[Part]:
        """The agents that run in pods."""
        return [
            Part(f"agent {pod}", sandbox.agent.pid or 0, sandbox.agent.restarts)
            for pod, sandbox in sorted(self._kubelet.sandboxes.items())
            if sandbox.agent is not None
        ]

    def _guest_changed(self, vm: ObjectName) -> None:
        self._controller.look_at(vm)
