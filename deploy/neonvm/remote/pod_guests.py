"""The guests of a real cluster, in runner pods: the ``GuestHost`` of its controllers.

A guest is polled from when its pod runs until the pod has ended, according to the API server. A runner that does not
respond proves nothing about its guest.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from deploy.kube.informer import Informer, ObjectChange
from deploy.neonvm.access.connections import RunnerConnections, RunnerEndpoint
from deploy.neonvm.addressing import QMP_PORT, RUNNER_PORT
from deploy.neonvm.dependencies import HostedGuest
from deploy.neonvm.objects.boot_record import boot_record
from deploy.neonvm.objects.owners import migration_of
from deploy.neonvm.objects.pod_form import is_open
from deploy.neonvm.ports import GuestError, GuestPhase, PodRole
from deploy.neonvm.qemu.transfer import Transfer, TransferEndpoints, run_to_completion
from deploy.neonvm.remote.address_claims import AddressClaims
from deploy.neonvm.remote.migration_endpoint import MigrationEndpoint, are_emulated, open_tls, run_migration
from deploy.neonvm.remote.remote_guest import Connect, RemoteGuest, RemoteMachine
from deploy.neonvm.remote.runner_client import PollLimiter, RunnerClient
from deploy.neonvm.runner.resizer import PollIntervals, Resizer
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.backoff import Backoff
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, child, has_finished, items, labels_of, name_of, pod_phase, text, uid_of
from protocol.messages import ObjectName
from protocol.names import LABEL_VM_NAME
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import MilliCpu, Resources, Seconds

_WORKERS: Final = 4
_RETRY: Final = Seconds(5.0)
"""Pause before a guest is polled again after an internal error."""
POLL_INTERVALS: Final = PollIntervals(
    booting=Backoff(Seconds(0.5), Seconds(4.0)), running=Seconds(30.0), silent=Backoff(Seconds(2.0), Seconds(60.0))
)
"""Slow, because a guest is also polled after each resize, which only we order, and when its pod's readiness changes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodGuestsDependencies:
    """Dependencies of ``PodGuests``. ``changed`` is called with the name of each VM whose guest has changed, ``ended``
    with the uid of each pod that has ended.
    """

    pods: Informer
    runners: RunnerConnections
    connect: Connect
    claims: AddressClaims
    clock: Clock
    changed: Callable[[ObjectName], None]
    ended: Callable[[str], None]


@dataclass(slots=True)
class _PolledGuest:
    uid: str
    guest: RemoteGuest
    resizer: Resizer
    task: asyncio.Task[None] | None = None


class PodGuests:
    """The guests of all runner pods. ``run`` polls them until cancelled."""

    def __init__(self, deps: PodGuestsDependencies) -> None:
        self._deps = deps
        self._queue = WorkQueue(deps.clock)
        self._polled: dict[ObjectName, _PolledGuest] = {}
        self._announcements: set[asyncio.Task[None]] = set()
        self._polls = PollLimiter()
        self.is_ending = False
        deps.pods.listen(self._pod_changed)

    def guest(self, pod: Json | None) -> HostedGuest:
        """The guest of the pod with this name and uid."""
        name, uid = name_of(pod or {}), uid_of(pod or {})
        # The pod's phase in the API takes precedence over the last poll.
        role = PodRole.UNKNOWN if self._lives(name, uid) else PodRole.EMPTY
        current, polled = self._deps.pods.get(name), self._polled.get(name)
        # The address of an open pod is not authenticated.
        is_exposed = current is not None and uid_of(current) == uid and is_open(current)
        migration_obstacle = texts.OLD_RUNNER if is_exposed else ""
        if polled is None or polled.uid != uid:
            return HostedGuest(None, role, False, migration_obstacle)
        if not polled.guest.is_known:
            fault = polled.resizer.fault
            return HostedGuest(None, role, False, migration_obstacle, polled.guest.acceleration, fault=fault)
        phase = polled.resizer.state.phase
        resizer = None if phase is GuestPhase.RECEIVING else polled.resizer
        role = PodRole.of(phase) if role is PodRole.UNKNOWN else role
        return HostedGuest(
            resizer, role, True, migration_obstacle, polled.guest.acceleration, moves_asleep=polled.guest.moves_asleep
        )

    async def vm_address(self, vm: Json) -> str:
        """The VM's flat-network address; empty if it has none. Raises like ``AddressClaims.claim_for``."""
        return await self._deps.claims.claim_for(vm)

    async def release_vm(self, vm: ObjectName, uid: str) -> None:
        """Release the VM's address. Its disk was deleted with its pod."""
        await self._deps.claims.release(vm, uid)

    async def send(
        self, source: ObjectName, target: ObjectName, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Migrate the guest from one pod to another. Raises like ``Guest.send``. If one of the
        pods is gone, the guest resumes in the other if that is safe.
        """
        source_end, target_end = self._end(source), self._end(target)
        if are_emulated(source_end, target_end):
            limits = limits.in_one_pass()
        machines = source_end.machine(), target_end.machine()
        transfer = Transfer(self._endpoints(source_end, target_end, *machines), limits, progress)

        def stop() -> None:
            # On shutdown the migration continues in QEMU, and the next leader resumes driving it.
            (transfer.detach if self.is_ending else transfer.cancel)()

        return await run_to_completion(run_migration(transfer, source_end, target_end, machines), stop)

    def _end(self, name: ObjectName) -> MigrationEndpoint:
        """One end of a migration, polled or not: migrations of an earlier leader must be finished."""
        polled = self._polled.get(name)
        if polled is not None:
            return MigrationEndpoint(
                polled.uid, polled.guest.runner, polled.guest.machine, polled.guest, polled.resizer
            )
        # The pod may have ended; finish the migration anyway.
        pod = self._deps.pods.get(name) or {}
        return MigrationEndpoint(uid_of(pod) or str(name), *self._clients(name, pod))

    def _endpoints(
        self, source_end: MigrationEndpoint, target_end: MigrationEndpoint, source: RemoteMachine, target: RemoteMachine
    ) -> TransferEndpoints:
        migration, clock = target_end.uid, self._deps.clock
        ends = source_end.runner, target_end.runner
        return TransferEndpoints(
            vm=source_end.runner.who,
            source=source,
            target=target,
            clock=clock,
            route_to_source=functools.partial(self._route_to, ends[0]),
            route_to_target=functools.partial(self._route_to, ends[1]),
            # No `frames`: the pods hand them over themselves.
            open_route=lambda *_: open_tls(*ends, migration, clock.wall(), sleeps=source_end.sleeps),
            decide=functools.partial(ends[0].decide, migration),
        )

    def _route_to(self, runner: RunnerClient) -> None:
        """Tell the pod to announce the VM; QEMU announces it again once the guest runs."""
        task = asyncio.ensure_future(_announce(runner))
        # A task, so that it does not delay the migration; referenced, because the event loop holds tasks weakly.
        self._announcements.add(task)
        task.add_done_callback(self._announcements.discard)

    async def run(self) -> None:
        """Poll guests until cancelled. Cancellation does not affect the guests."""
        await self._deps.pods.synced.wait()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WORKERS):
                polls = self._queue.serve(lambda name: self._sync(name, tasks))
                tasks.create_task(polls)

    async def _sync(self, name: ObjectName, tasks: asyncio.TaskGroup) -> None:
        pod, polled = self._deps.pods.get(name), self._polled.get(name)
        # A different uid means a new pod of the same name.
        if polled is not None and (pod is None or uid_of(pod) != polled.uid or has_finished(pod)):
            del self._polled[name]
            polled.resizer.leave()
            self._polls.forget(str(name))
            self._deps.ended(polled.uid)
            if polled.task is not None:
                polled.task.cancel()
            polled = None
        if pod is not None and polled is None and _has_guest(pod):
            self._start_polling(name, pod, tasks)

    def _start_polling(self, name: ObjectName, pod: Json, tasks: asyncio.TaskGroup) -> None:
        vm_name, record = ObjectName(name.namespace, labels_of(pod)[LABEL_VM_NAME]), boot_record(pod)
        if record is None:
            return  # created neither by our controller nor by NeonVM's
        runner, open_machine = self._clients(name, pod)

        def changed() -> None:
            self._deps.changed(vm_name)

        guest, uid = RemoteGuest(runner, open_machine, record, self._deps.clock, changed), uid_of(pod)
        # A pod owned by a migration is its target, which receives a guest instead of booting one.
        phase = GuestPhase.RECEIVING if migration_of(pod) else GuestPhase.BOOTING
        # A placeholder until the first poll.
        starting = Resources(MilliCpu(0), record.machine.mem_min)
        resizer = Resizer(guest, starting, self._deps.clock, changed, phase)
        resizer.poll_intervals = POLL_INTERVALS
        resizer.hold()  # the placeholder is not a request; wait for one
        self._polled[name] = polled = _PolledGuest(uid, guest, resizer)
        polled.task = tasks.create_task(self._poll_forever(name, resizer))

    async def _poll_forever(self, name: ObjectName, resizer: Resizer) -> None:
        """Poll one guest; on an internal error, retry. Runners are not trusted, so any response may cause one."""
        while True:
            try:
                await resizer.run()
            except* Exception as faults:  # noqa: BLE001 - one guest must not end the controller of all others
                _log.exception(texts.POLL_INTERNAL_ERROR, extra={"object": str(name)})
                # Shown on the VM, whose size may be stale until the next poll.
                resizer.has_failed(texts.INTERNAL_ERROR.format(error=faults.exceptions[0]))
            await self._deps.clock.sleep(_RETRY)

    def _clients(self, name: ObjectName, pod: Json) -> tuple[RunnerClient, Callable[[], RemoteMachine]]:
        """Clients for the pod's runner and QEMU, at the ports with which they were started."""
        address, uid, record = text(pod, "status", "podIP"), uid_of(pod), boot_record(pod)
        ports = (RUNNER_PORT, QMP_PORT) if record is None else (record.runner_port, record.qmp_port)
        # A deleted pod counts as not open, so that the next pod with its address must authenticate.
        endpoint = RunnerEndpoint(str(name), uid, address, *ports, is_open=bool(pod) and is_open(pod))

        def open_machine() -> RemoteMachine:
            return RemoteMachine(endpoint, self._deps.connect, lambda: self._lives(name, uid))

        return RunnerClient(self._deps.runners, endpoint, self._polls), open_machine

    def _lives(self, name: ObjectName, uid: str) -> bool:
        pod = self._deps.pods.get(name)
        return pod is not None and uid_of(pod) == uid and not has_finished(pod)

    def _pod_changed(self, change: ObjectChange) -> None:
        if any(
            version is not None and LABEL_VM_NAME in labels_of(version) for version in (change.before, change.after)
        ):
            self._queue.add(change.name)
            # Ignore our own patches of the pod.
            if (polled := self._polled.get(change.name)) is not None and _hints(change.before) != _hints(change.after):
                polled.resizer.poll_soon()


def _has_guest(pod: Json) -> bool:
    return pod_phase(pod) == "Running" and not has_finished(pod) and bool(text(pod, "status", "podIP"))


def _hints(pod: Json | None) -> object:
    """The fields of a pod whose change hints at a change of its guest."""
    if pod is None:
        return None
    status = child(pod, "status")
    ready = text(condition_of(pod, "Ready"), "status")
    started = [child(container_status, "state") for container_status in items(pod, "status", "containerStatuses")]
    return uid_of(pod), pod_phase(pod), text(status, "podIP"), migration_of(pod), ready, started


async def _announce(runner: RunnerClient) -> None:
    with suppress(GuestError):
        await runner.announce()
