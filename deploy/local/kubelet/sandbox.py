"""The life of one VM's pod on its node: a place in the network, a guest, and the agent beside it.

What belongs to the VM (its address, its disk) outlives all its pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from deploy.kube.client import ApiClient
from deploy.local.kubelet.agents import EXPLAIN_TOKEN, AgentFiles, AgentRun, run_agent, sidecar
from deploy.local.kubelet.pod_status import failed_status, moved_status, running_status
from deploy.local.kubelet.reporting import keep_writing_status
from deploy.local.process import ProcessSupervisor
from deploy.neonvm import ports
from deploy.neonvm.network.chooser import LocalNetwork
from deploy.neonvm.objects.booted import booted_spec, machine_for
from deploy.neonvm.objects.owners import migration_of
from deploy.neonvm.objects.pods import has_agent
from deploy.neonvm.objects.vm_spec import kernel_arguments, machine_of, password_secret
from deploy.neonvm.password import PasswordGuest, keep_password, password_in, usable
from deploy.neonvm.runner.resizer import HERE, Pace, Resizer
from deploy.neonvm.runner.runner_arguments import guest_of_vm
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.guest.sleep import SLEEPING
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, annotations_of, name_of, node_of, uid_of
from protocol.kubernetes.resources import SECRETS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_SLEEP_IGNORES
from protocol.runtime.clock import Clock
from protocol.units import Resources, Seconds


@dataclass(frozen=True, slots=True)
class NodeDependencies:
    """Dependencies of pods. ``state`` is the cluster's folder; ``policy`` is the agents' policy file, if any;
    ``pace`` is how often guests are asked for their size; ``changed`` gets the name of a VM whose guest has changed.
    """

    client: ApiClient
    network: LocalNetwork
    guests: ports.Guests
    clock: Clock
    state: Path
    policy: Path | None
    pace: Pace = HERE
    changed: Callable[[ObjectName], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class _Inside:
    guest: ports.Guest
    resizer: Resizer


_log = logging.getLogger(__name__)


class Sandbox:
    """One pod. Cancel ``run`` to end it."""

    def __init__(self, pod: Json, vm: Json, deps: NodeDependencies) -> None:
        """The guest boots the machine in the pod's arguments, even if ``vm`` has changed since the pod was made, but at
        the size that ``vm`` asks for now.

        Raises ``ArgumentsError`` if the pod has no such arguments, and ``InvalidObjectError`` if they, or ``vm``,
        cannot be read.
        """
        self.uid = uid_of(pod)
        self._pod = pod
        self._name = name_of(pod)
        vm_as_booted = {**vm, "spec": booted_spec(pod)}
        machine = machine_of(vm_as_booted)
        self._machine = replace(machine, use=machine_for(machine).clip(machine_of(vm).use))
        self._kernel_arguments = kernel_arguments(vm_as_booted)
        self._ignores = annotations_of(vm).get(ANNOTATION_SLEEP_IGNORES, "")
        self._secret = password_secret(vm_as_booted)
        self._deps = deps
        self._inside: _Inside | None = None
        self._receives = bool(migration_of(pod))
        self._moved_to: ObjectName | None = None
        self._decided = asyncio.Event()  # not set while a transfer has yet to show where the guest is
        self._decided.set()
        self.agent: ProcessSupervisor | None = None

    @property
    def guest(self) -> Resizer | None:
        """The guest's resizer; None while none runs here."""
        # A guest is hidden while it receives; once it runs, the pod is like any other.
        return self._inside.resizer if self._inside is not None and not self._receives else None

    @property
    def role(self) -> ports.PodRole:
        """Role of the guest."""
        if self._inside is None:
            return ports.PodRole.EMPTY
        role = ports.PodRole.of(self._inside.resizer.state.phase)
        return ports.PodRole.RECEIVING if self._receives and role is not ports.PodRole.EMPTY else role

    async def send(
        self, target: Sandbox, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Moves the guest into ``target``, as ``Guest.send`` does; both pods know afterwards where it is."""
        ours, theirs = self._inside, target._inside
        if ours is None or theirs is None:
            raise ports.TransferError(ports.TransferFault.REFUSED, "there is no guest at one of the ends")
        # Until the end of the transfer is known, `_attend` must not report this pod as failed because its guest has
        # stopped.
        self._decided.clear()
        try:
            info = await ours.guest.send(theirs.guest, limits, progress)
        # A failed or cancelled transfer may have moved the guest all the same: the two guests themselves say which
        # one runs.
        except BaseException:
            if await _has_moved(ours.guest, theirs.guest):
                self._leave_for(target, ours, theirs)
            raise
        else:
            self._leave_for(target, ours, theirs)
            return info
        finally:
            self._decided.set()

    def _leave_for(self, target: Sandbox, ours: _Inside, theirs: _Inside) -> None:
        self._moved_to = target._name
        # The target is now a pod like any other, and `guest` shows its guest.
        target._receives = False
        # One that has slept had no size.
        had = ours.resizer.state
        size = target._machine.use if had.phase in SLEEPING else Resources(had.cpu, had.mem)
        ours.resizer.leave()
        theirs.resizer.arrive(ports.GuestState(ports.GuestPhase.RUNNING, size.cpu, size.mem))

    async def run(self) -> Json:
        """Runs the pod to its end, and returns the status that says how it ended."""
        try:
            reason = await self._live()
        except (ports.GuestError, ports.NetworkError, OSError) as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - one pod must not end the runtime that has the guests of all others
            _log.exception("a pod ended by an error of the runtime", extra={"pod": str(self._name)})
            reason = f"an error of the runtime: {error!r}"
        now = timestamp(self._deps.clock.wall())
        if self._moved_to is not None:
            return moved_status(f"the guest has moved to pod {self._moved_to.name}", now)
        return failed_status(reason, now)

    async def _live(self) -> str:
        network = self._deps.network
        # Every step is undone in the reverse order, whatever ends the pod: agent, guest, network.
        place = await network.add_pod(node_of(self._pod), self._name)
        try:
            guest = self._deps.guests.create(await self._guest_spec(place))
            try:
                await (guest.receive() if self._receives else guest.start())
                return f"the guest has ended: {await self._attend(guest, place)}"
            finally:
                self._inside = None
                await guest.stop()
        finally:
            await network.remove_pod(self._name)
            self._deps.changed(self._machine.name)

    async def _attend(self, guest: ports.Guest, place: ports.PodNetwork) -> str:
        """Keeps the guest at its size and the agent beside it until the guest has ended; returns why it has."""
        deps, machine = self._deps, self._machine
        begins = ports.GuestPhase.RECEIVING if self._receives else ports.GuestPhase.BOOTING
        resizer = Resizer(guest, machine.use, deps.clock, lambda: deps.changed(machine.name), begins)
        resizer.pace = deps.pace
        self._inside = _Inside(guest, resizer)
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._accompany(place))]
            if isinstance(guest, PasswordGuest):
                beside.append(tasks.create_task(keep_password(guest, self._password, deps.clock)))
            # The pod ends when its guest does. The agent is not part of the pod's health: one that crashes is started
            # again.
            reason = await resizer.run()
            # A guest that has moved away also stops here; `send` knows whether it has.
            await self._decided.wait()
            for task in beside:
                task.cancel()
        return reason

    async def _accompany(self, place: ports.PodNetwork) -> None:
        deps = self._deps
        status = running_status(self._pod, place.address, timestamp(deps.clock.wall()))
        await keep_writing_status(deps.client, self._pod, status, deps.clock)
        # The per-node form of the agent serves this pod from outside.
        if not has_agent(self._pod):
            return
        folder = pod_folder(deps.state, self._name, self.uid)
        files = AgentFiles(folder, deps.policy, deps.state / EXPLAIN_TOKEN)
        run = sidecar(self._pod, self._machine.name, place, files)
        await attend_agent(run, deps, self._keep)

    async def _password(self) -> str:
        """The password in the VM's Secret; empty if it cannot be read now."""
        try:
            return usable(password_in(await self._deps.client.get(SECRETS, self._secret)))
        except (ApiError, ValueError):
            return ""

    def _keep(self, supervisor: ProcessSupervisor) -> None:
        self.agent = supervisor

    async def _guest_spec(self, place: ports.PodNetwork) -> ports.GuestSpec:
        vm = self._machine
        return guest_of_vm(
            vm,
            self._name,
            place,
            vm_folder(self._deps.state, vm.name, vm.uid),
            address=await self._deps.network.vm_address(vm.name),
            kernel_arguments=self._kernel_arguments,
            ignores=self._ignores,
        )


async def _has_moved(source: ports.Guest, target: ports.Guest) -> bool:
    """Return True if the guest is at the target after a failed move."""
    try:
        if (await source.state()).phase is not ports.GuestPhase.STOPPED:
            return False
    except ports.GuestError:
        return False
    try:
        return (await target.state()).phase not in {ports.GuestPhase.STOPPED, ports.GuestPhase.RECEIVING}
    except ports.GuestError:
        # The source has stopped, so a target that cannot be asked is better than no guest at all.
        return True


async def attend_agent(run: AgentRun, deps: NodeDependencies, started: Callable[[ProcessSupervisor], None]) -> None:
    """Keeps an agent running until cancelled, also while it can get no token (no API server, a full disk): an agent
    without one must not end the guest beside it.
    """
    supervisor = ProcessSupervisor(run.program, deps.clock)
    started(supervisor)
    while True:
        try:
            await run_agent(run, deps.client, deps.clock, supervisor)
        except (ApiError, OSError):
            await deps.clock.sleep(Seconds(1.0))


def vm_folder(state: Path, vm: ObjectName, uid: str) -> Path:
    """Folder of a VM's disk and logs, shared by all its pods."""
    # The uid keeps a new VM of the same name from booting the disk of a deleted one.
    return state / "vms" / vm.namespace / f"{vm.name}-{uid[:8]}"


def pod_folder(state: Path, pod: ObjectName, uid: str) -> Path:
    """Folder of a pod's tokens and logs."""
    return state / "pods" / pod.namespace / f"{pod.name}-{uid[:8]}"
