"""The life of one VM's pod on its node: a place in the network, a guest, and the agent beside it.

Rules that hold here:

- What was begun is undone in the reverse order, whatever ended the pod: agent, guest, network.
- The agent starts with the guest. It is not part of the pod's health: an agent that crashes is started again.
- The pod ends when its guest does, and is then reported as failed with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.local.clock import Clock
from deploy.local.kube.client import ApiClient, ApiError, ApiUnavailableError
from deploy.local.kube.objects import PODS, Json, name_of, node_of, uid_of
from deploy.local.kubelet.agents import AgentRun, run_agent, sidecar
from deploy.local.kubelet.pod_status import failed_status, running_status
from deploy.local.neonvm.pods import has_agent
from deploy.local.neonvm.resizer import Resizer
from deploy.local.ports import ClusterNetwork, Guest, GuestError, Guests, GuestSpec, NetworkError, PodNetwork
from deploy.local.process import Keeper
from protocol.messages import ObjectName
from protocol.units import Seconds
from protocol.virtual_machine import VirtualMachine


@dataclass(frozen=True, slots=True)
class NodeMeans:
    """What pods are made with. ``state`` is the cluster's folder; ``policy`` is the agents' policy file, if any."""

    client: ApiClient
    network: ClusterNetwork
    guests: Guests
    clock: Clock
    state: Path
    policy: Path | None
    changed: Callable[[ObjectName], None]
    """Called with the VM's name when its guest has changed."""


class Sandbox:
    """One pod. Cancel ``run`` to end it."""

    def __init__(self, pod: Json, machine: VirtualMachine, means: NodeMeans) -> None:
        self.uid = uid_of(pod)
        self._pod = pod
        self._name = name_of(pod)
        self._machine = machine
        self._means = means
        self.guest: Resizer | None = None
        self.agent: Keeper | None = None

    async def run(self) -> None:
        """Runs the pod to its end and reports it. Raises ``ApiError`` where it cannot be reported."""
        try:
            reason = await self._live()
        except (GuestError, NetworkError, OSError) as error:
            reason = str(error)
        await report(self._means, self._name, failed_status(reason, self._means.clock.timestamp()))

    async def _live(self) -> str:
        network = self._means.network
        place = await network.add_pod(node_of(self._pod), self._name)
        try:
            guest = self._means.guests.create(await self._guest_spec(place))
            try:
                await guest.start()
                await self._attend(guest, place)
            finally:
                self.guest = None
                await guest.stop()
        finally:
            await network.remove_pod(self._name)
            self._means.changed(self._machine.name)
        return "the guest has ended"

    async def _attend(self, guest: Guest, place: PodNetwork) -> None:
        means, machine = self._means, self._machine
        self.guest = Resizer(guest, machine.use, means.clock, lambda: means.changed(machine.name))
        await report(means, self._name, running_status(self._pod, place.address, means.clock.timestamp()))
        async with asyncio.TaskGroup() as tasks:
            companions = [tasks.create_task(self._agent(place))] if has_agent(self._pod) else []
            await self.guest.run()
            for companion in companions:
                companion.cancel()

    async def _agent(self, place: PodNetwork) -> None:
        means = self._means
        folder = pod_folder(means.state, self._name, self.uid)
        run = sidecar(self._pod, self._machine.name, place, folder, means.policy)
        await attend_agent(run, means, self._keep)

    def _keep(self, keeper: Keeper) -> None:
        self.agent = keeper

    async def _guest_spec(self, place: PodNetwork) -> GuestSpec:
        vm = self._machine
        return GuestSpec(
            vm=vm.name,
            pod=self._name,
            cpu_max=vm.bounds.max.cpu,
            cpu_use=vm.use.cpu,
            mem_min=vm.bounds.min.mem,
            mem_max=vm.bounds.max.mem,
            mem_use=vm.use.mem,
            address=await self._means.network.vm_address(vm.name),
            network=place,
            state_dir=vm_folder(self._means.state, vm.name, vm.uid),
        )


async def attend_agent(run: AgentRun, means: NodeMeans, started: Callable[[Keeper], None]) -> None:
    """Keeps an agent running until cancelled, also while the API server that gives it its tokens is away."""
    keeper = Keeper(run.program, means.clock, lambda _: None)
    started(keeper)
    while True:
        try:
            await run_agent(run, means.client, means.clock, keeper)
        except (ApiError, ApiUnavailableError):
            await means.clock.sleep(Seconds(1.0))


async def report(means: NodeMeans, pod: ObjectName, status: Json) -> None:
    """Writes a pod's status; waits for an API server that is away. A pod that is gone needs none."""
    while True:
        try:
            await means.client.merge_patch(PODS, pod, {"status": status}, "status")
        except ApiUnavailableError:
            await means.clock.sleep(Seconds(1.0))
        except ApiError as error:
            if error.status == 404:
                return
            raise
        else:
            return


def vm_folder(state: Path, vm: ObjectName, uid: str) -> Path:
    """Where a VM keeps its disk and logs, across all its pods."""
    return state / "vms" / vm.namespace / f"{vm.name}-{uid[:8]}"


def pod_folder(state: Path, pod: ObjectName, uid: str) -> Path:
    """Where a pod keeps its tokens and logs."""
    return state / "pods" / pod.namespace / f"{pod.name}-{uid[:8]}"
