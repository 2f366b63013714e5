"""The sandbox of a VM's pod: network, guest and agent.

The VM's IP and disk outlive its pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from deploy.kube.client import ApiClient
from deploy.local.kubelet.agents import EXPLAIN_TOKEN, AgentRun, run_agent, sidecar_form
from deploy.local.kubelet.pod_status import failed_status, moved_status, running_status
from deploy.local.kubelet.reporting import keep_writing_status
from deploy.local.process import ProcessSupervisor
from deploy.neonvm import ports
from deploy.neonvm.network.chooser import LocalNetwork
from deploy.neonvm.objects.boot_record import machine_for, spec_at_boot
from deploy.neonvm.objects.owners import migration_of
from deploy.neonvm.objects.pods import has_agent
from deploy.neonvm.objects.vm_spec import kernel_arguments, machine_of, password_secret
from deploy.neonvm.password import PasswordGuest, password_in, sync_password, valid_password
from deploy.neonvm.runner.resizer import LOCAL_INTERVALS, PollIntervals, Resizer
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
    """Dependencies of sandboxes.

    ``state`` is the cluster's folder, ``policy`` the agents' policy file. ``changed`` is called with the name of a VM
    whose guest has changed.
    """

    client: ApiClient
    network: LocalNetwork
    guests: ports.Guests
    clock: Clock
    state: Path
    policy: Path | None
    poll_intervals: PollIntervals = LOCAL_INTERVALS
    changed: Callable[[ObjectName], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class _RunningGuest:
    guest: ports.Guest
    resizer: Resizer


_log = logging.getLogger(__name__)


class Sandbox:
    """One VM pod. Cancel ``run`` to end it."""

    def __init__(self, pod: Json, vm: Json, deps: NodeDependencies) -> None:
        """The guest boots with the machine in the pod's arguments, at the size in the current spec of ``vm``.

        Raises ``ArgumentsError`` if the pod has no machine arguments, ``InvalidObjectError`` if they or ``vm`` are
        invalid.
        """
        self.uid = uid_of(pod)
        self._pod = pod
        self._name = name_of(pod)
        vm_as_booted = {**vm, "spec": spec_at_boot(pod)}
        machine = machine_of(vm_as_booted)
        self._machine = structs.replace(machine, use=machine_for(machine).clip(machine_of(vm).use))
        self._kernel_arguments = kernel_arguments(vm_as_booted)
        self._ignores = annotations_of(vm).get(ANNOTATION_SLEEP_IGNORES, "")
        self._secret = password_secret(vm_as_booted)
        self._deps = deps
        self._running: _RunningGuest | None = None
        self._receives = bool(migration_of(pod))
        self._moved_to: ObjectName | None = None
        self._transfer_settled = asyncio.Event()  # cleared during a transfer, until the guest's pod is known
        self._transfer_settled.set()
        self.agent: ProcessSupervisor | None = None

    @property
    def guest(self) -> Resizer | None:
        """The guest's resizer; None if no guest runs here, or it is still being received."""
        return self._running.resizer if self._running is not None and not self._receives else None

    @property
    def role(self) -> ports.PodRole:
        """The pod's role in a migration."""
        if self._running is None:
            return ports.PodRole.EMPTY
        role = ports.PodRole.of(self._running.resizer.state.phase)
        return ports.PodRole.RECEIVING if self._receives and role is not ports.PodRole.EMPTY else role

    async def send(
        self, target: Sandbox, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Migrate the guest into ``target``. Raises like ``Guest.send``."""
        ours, theirs = self._running, target._running
        if ours is None or theirs is None:
            raise ports.TransferError(ports.TransferFault.REFUSED, "the source pod or the target pod has no guest")
        # The source guest stops during a transfer; `_run_guest` must not report that as a failure.
        self._transfer_settled.clear()
        try:
            info = await ours.guest.send(theirs.guest, limits, progress)
        # A failed or cancelled transfer may still have moved the guest.
        except BaseException:
            if await _has_moved(ours.guest, theirs.guest):
                self._hand_over(target, ours, theirs)
            raise
        else:
            self._hand_over(target, ours, theirs)
            return info
        finally:
            self._transfer_settled.set()

    def _hand_over(self, target: Sandbox, ours: _RunningGuest, theirs: _RunningGuest) -> None:
        self._moved_to = target._name
        target._receives = False
        # A sleeping guest has no size.
        state = ours.resizer.state
        size = target._machine.use if state.phase in SLEEPING else Resources(state.cpu, state.mem)
        ours.resizer.leave()
        theirs.resizer.arrive(ports.GuestState(ports.GuestPhase.RUNNING, size.cpu, size.mem))

    async def run(self) -> Json:
        """Run the pod until it ends; return its final status."""
        try:
            reason = await self._live()
        except (ports.GuestError, ports.NetworkError, OSError) as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - one pod must not end the process that runs all other guests
            _log.exception("internal error; the pod failed", extra={"pod": str(self._name)})
            reason = f"internal error of the kubelet: {error!r}"
        now = timestamp(self._deps.clock.wall())
        if self._moved_to is not None:
            return moved_status(f"the guest has moved to pod {self._moved_to.name}", now)
        return failed_status(reason, now)

    async def _live(self) -> str:
        network = self._deps.network
        pod_network = await network.add_pod(node_of(self._pod), self._name)
        try:
            guest = self._deps.guests.create(await self._guest_spec(pod_network))
            try:
                await (guest.receive() if self._receives else guest.start())
                return f"the guest has ended: {await self._run_guest(guest, pod_network)}"
            finally:
                self._running = None
                await guest.stop()
        finally:
            await network.remove_pod(self._name)
            self._deps.changed(self._machine.name)

    async def _run_guest(self, guest: ports.Guest, pod_network: ports.PodNetwork) -> str:
        """Run the guest's resizer and the agent until the guest has ended; return the reason."""
        deps, machine = self._deps, self._machine
        begins = ports.GuestPhase.RECEIVING if self._receives else ports.GuestPhase.BOOTING
        resizer = Resizer(guest, machine.use, deps.clock, lambda: deps.changed(machine.name), begins)
        resizer.poll_intervals = deps.poll_intervals
        self._running = _RunningGuest(guest, resizer)
        async with asyncio.TaskGroup() as tasks:
            companions = [tasks.create_task(self._report_and_run_agent(pod_network))]
            if isinstance(guest, PasswordGuest):
                companions.append(tasks.create_task(sync_password(guest, self._password, deps.clock)))
            reason = await resizer.run()
            # A migrated guest stops too; wait until `send` has recorded that.
            await self._transfer_settled.wait()
            for task in companions:
                task.cancel()
        return reason

    async def _report_and_run_agent(self, pod_network: ports.PodNetwork) -> None:
        deps = self._deps
        status = running_status(self._pod, pod_network.address, timestamp(deps.clock.wall()))
        await keep_writing_status(deps.client, self._pod, status, deps.clock)
        # Otherwise the node's agent is responsible for this VM.
        if not has_agent(self._pod):
            return
        folder, form = pod_folder(deps.state, self._name, self.uid), sidecar_form(self._machine.name, pod_network)
        run = AgentRun(self._pod, pod_network, form, folder, deps.policy, deps.state / EXPLAIN_TOKEN)
        self.agent = ProcessSupervisor(run.program, deps.clock)
        await keep_agent_running(run, deps, self.agent)

    async def _password(self) -> str:
        """The password in the VM's Secret; empty if it cannot be read."""
        try:
            return valid_password(password_in(await self._deps.client.get(SECRETS, self._secret)))
        except (ApiError, ValueError):
            return ""

    async def _guest_spec(self, pod_network: ports.PodNetwork) -> ports.GuestSpec:
        vm = self._machine
        spec = guest_of_vm(vm, self._name, pod_network, vm_folder(self._deps.state, vm.name, vm.uid))
        address = await self._deps.network.vm_address(vm.name)
        return replace(spec, address=address, kernel_arguments=self._kernel_arguments, ignores=self._ignores)


async def _has_moved(source: ports.Guest, target: ports.Guest) -> bool:
    """Return True if, after a failed transfer, the guest runs at the target."""
    try:
        if (await source.state()).phase is not ports.GuestPhase.STOPPED:
            return False
    except ports.GuestError:
        return False
    try:
        return (await target.state()).phase not in {ports.GuestPhase.STOPPED, ports.GuestPhase.RECEIVING}
    except ports.GuestError:
        # The source has stopped, so the target counts even if it does not respond.
        return True


async def keep_agent_running(run: AgentRun, deps: NodeDependencies, supervisor: ProcessSupervisor) -> None:
    """Keep an agent running until cancelled. Retries if its tokens cannot be written (API server down, disk full)."""
    while True:
        try:
            await run_agent(run, deps.client, deps.clock, supervisor)
        except (ApiError, OSError):
            await deps.clock.sleep(Seconds(1.0))


def vm_folder(state: Path, vm: ObjectName, uid: str) -> Path:
    """Folder of a VM's disk and logs; the same for all its pods."""
    # With the uid: a new VM must not boot the disk of a deleted one with the same name.
    return state / "vms" / vm.namespace / f"{vm.name}-{uid[:8]}"


def pod_folder(state: Path, pod: ObjectName, uid: str) -> Path:
    """Folder of a pod's tokens and logs."""
    return state / "pods" / pod.namespace / f"{pod.name}-{uid[:8]}"
