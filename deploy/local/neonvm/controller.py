"""The controller's shell: watches VirtualMachines and their pods, and carries plans out.

A controller that starts anew knows nothing but the API and the guests that run in this process: that is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from deploy.local.clock import Clock
from deploy.local.kube.client import ApiClient, ApiError, ApiUnavailableError
from deploy.local.kube.events import WARNING, Events
from deploy.local.kube.informer import Change, Informer
from deploy.local.kube.objects import (
    PODS,
    VIRTUAL_MACHINES,
    Json,
    annotations_of,
    child,
    items,
    labels_of,
    name_of,
    text,
    uid_of,
)
from deploy.local.neonvm.machine import FINALIZER, machine_of
from deploy.local.neonvm.plan import Facts, Plan, plan
from deploy.local.neonvm.pods import runner_pod, usage_annotation
from deploy.local.neonvm.resizer import Resizer
from deploy.local.ports import GuestPhase
from deploy.local.work_queue import WorkQueue
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_USAGE, LABEL_VM_NAME
from protocol.units import Instant, Resources, Seconds
from protocol.virtual_machine import InvalidObjectError, VirtualMachine

_WORKERS: Final = 4
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_FIRST_RESTART: Final = 1.0
_LONGEST_RESTART: Final = 30.0
_STEADY: Final = Seconds(60.0)
"""A guest that ran for so long is restarted without a pause when it ends."""


class GuestRoom(Protocol):
    """The guests that run here, by their pods; the kubelet's side."""

    def guest(self, pod: ObjectName, uid: str) -> Resizer | None:
        """The guest of that very pod; None where it does not run here."""

    async def vm_address(self, vm: ObjectName) -> str:
        """The VM's address on the flat network."""

    async def release_vm(self, vm: ObjectName, uid: str) -> None:
        """The VM is gone for good: its address and its disk are given back."""


@dataclass(slots=True)
class _Restarts:
    """When a VM may start again."""

    failures: int = 0
    not_before: Instant = Instant(0.0)
    ran_since: Instant | None = None


@dataclass(frozen=True, slots=True)
class Means:
    """What the controller works with. ``suffix`` draws the random end of a pod's name."""

    client: ApiClient
    vms: Informer
    pods: Informer
    room: GuestRoom
    events: Events
    clock: Clock
    suffix: Callable[[], str]
    sidecars: bool


class NeonVmController:
    """Runs the VirtualMachines of one cluster."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._queue = WorkQueue(means.clock)
        self._restarts: dict[str, _Restarts] = {}
        means.vms.listen(lambda change: self._queue.add(change.name))
        means.pods.listen(self._pod_changed)

    def look_at(self, vm: ObjectName) -> None:
        """Something about the VM's guest has changed."""
        self._queue.add(vm)

    async def run(self) -> None:
        """Works until cancelled."""
        await self._means.vms.synced.wait()
        await self._means.pods.synced.wait()
        async with asyncio.TaskGroup() as workers:
            for _ in range(_WORKERS):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            name = await self._queue.take()
            try:
                await self.reconcile(name)
            except (ApiError, ApiUnavailableError) as error:
                self._queue.failed(name)
                vm = self._means.vms.get(name)
                if vm is not None and isinstance(error, ApiError) and error.status not in {_CONFLICT, _NOT_FOUND}:
                    await self._means.events.say(vm, "FailedReconcile", str(error), WARNING)
            else:
                self._queue.done(name)

    async def reconcile(self, name: ObjectName) -> None:
        """Looks at one VM and does what is to be done now. Raises ``ApiError`` and ``ApiUnavailableError``."""
        vm = self._means.vms.get(name)
        if vm is None:
            return
        pod = self._pod_of(vm)
        guest = self._means.room.guest(name_of(pod), uid_of(pod)) if pod is not None else None
        facts = await self._facts(vm, pod, guest)
        await self._carry_out(plan(facts), facts, guest)

    async def _facts(self, vm: Json, pod: Json | None, guest: Resizer | None) -> Facts:
        machine: VirtualMachine | None = None
        fault = ""
        try:
            machine = machine_of(vm)
        except InvalidObjectError as error:
            fault = str(error)
            await self._means.events.say(vm, "InvalidSpec", fault, WARNING)
        return Facts(
            vm=vm,
            machine=machine,
            fault=fault,
            pod=pod,
            guest=guest.state if guest else None,
            guest_fault=guest.fault if guest else "",
            vm_address=await self._means.room.vm_address(name_of(vm)),
            restart_due=self._restart_due(vm, guest),
            new_pod_name=lambda: f"{name_of(vm).name}-{self._means.suffix()}",
        )

    def _pod_of(self, vm: Json) -> Json | None:
        name = text(vm, "status", "podName")
        pod = self._means.pods.get(ObjectName(name_of(vm).namespace, name)) if name else None
        return pod if pod is not None and _owned_by(pod, vm) else None

    def _restart_due(self, vm: Json, guest: Resizer | None) -> bool:
        """Notes how long guests run, and whether the pause since the last one's end is over."""
        restarts = self._restarts.setdefault(uid_of(vm), _Restarts())
        now = self._means.clock.now()
        if guest is not None and guest.state.phase is not GuestPhase.STOPPED:
            restarts.ran_since = restarts.ran_since or now
        elif restarts.ran_since is not None:
            restarts.failures = 0 if now - restarts.ran_since >= _STEADY else restarts.failures + 1
            pause = min(_FIRST_RESTART * 2.0 ** min(restarts.failures - 1, 10), _LONGEST_RESTART)
            restarts.not_before = Instant(now + (pause if restarts.failures else 0.0))
            restarts.ran_since = None
        return now >= restarts.not_before

    async def _carry_out(self, todo: Plan, facts: Facts, guest: Resizer | None) -> None:
        name, vm = name_of(facts.vm), facts.vm
        if todo.add_finalizer:
            await self._set_finalizers(vm, [*_finalizers(vm), FINALIZER])
        if guest is not None and todo.want is not None:
            guest.want(todo.want)
        await self._report(vm, todo.status)
        if facts.pod is not None and guest is not None and guest.state.phase is GuestPhase.RUNNING:
            await self._annotate(facts.pod, guest)
        if todo.create_pod and facts.machine is not None:
            await self._create_pod(vm, facts.machine)
        if todo.delete_pod and facts.pod is not None:
            await self._means.client.delete(PODS, name_of(facts.pod), uid_of(facts.pod))
        if todo.remove_finalizer:
            await self._means.room.release_vm(name, uid_of(vm))
            self._restarts.pop(uid_of(vm), None)
            await self._set_finalizers(vm, [each for each in _finalizers(vm) if each != FINALIZER])
        if todo.wait_for_restart:
            wait = self._restarts[uid_of(vm)].not_before - self._means.clock.now()
            self._queue.add(name, Seconds(max(0.05, wait)))

    async def _report(self, vm: Json, wanted: Json) -> None:
        """Writes the parts of the status that differ; conditions get their time when they turn."""
        now = self._means.clock.timestamp()
        if "conditions" in wanted:
            turned = [{"lastTransitionTime": now, **each} for each in items(wanted, "conditions")]
            wanted = {**wanted, "conditions": turned}
        status = child(vm, "status")
        changed = {key: value for key, value in wanted.items() if status.get(key) != value}
        if changed:
            # A new pod's name may be given only once: not to an object that has changed since it was looked at.
            version: Json = {"resourceVersion": text(vm, "metadata", "resourceVersion")} if "podName" in changed else {}
            body: Json = {"metadata": version, "status": changed}
            await self._means.client.merge_patch(VIRTUAL_MACHINES, name_of(vm), body, "status")
            await self._say_phase(vm, changed)

    async def _say_phase(self, vm: Json, changed: Mapping[str, object]) -> None:
        if changed.get("phase") in {"Failed", "Succeeded"}:
            why = next((text(each, "message") for each in items(dict(changed), "conditions")), "")
            await self._means.events.say(vm, str(changed["phase"]), f"the VM has ended: {why}", WARNING)

    async def _annotate(self, pod: Json, guest: Resizer) -> None:
        usage = usage_annotation(Resources(guest.state.cpu, guest.state.mem))
        if annotations_of(pod).get(ANNOTATION_USAGE) != usage:
            body: Json = {"metadata": {"annotations": {ANNOTATION_USAGE: usage}}}
            await self._means.client.merge_patch(PODS, name_of(pod), body)

    async def _create_pod(self, vm: Json, machine: VirtualMachine) -> None:
        pod = runner_pod(vm, text(vm, "status", "podName"), machine.use, self._means.sidecars)
        try:
            await self._means.client.create(PODS, name_of(vm).namespace, pod)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise

    async def _set_finalizers(self, vm: Json, finalizers: list[object]) -> None:
        version = text(vm, "metadata", "resourceVersion")
        body: Json = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        await self._means.client.merge_patch(VIRTUAL_MACHINES, name_of(vm), body)

    def _pod_changed(self, change: Change) -> None:
        found = change.new or change.old
        vm = labels_of(found).get(LABEL_VM_NAME) if found else None
        if vm:
            self._queue.add(ObjectName(change.name.namespace, vm))


def _finalizers(vm: Json) -> list[object]:
    found = child(vm, "metadata").get("finalizers")
    return list(found) if isinstance(found, list) else []


def _owned_by(pod: Json, vm: Json) -> bool:
    return any(text(each, "uid") == uid_of(vm) for each in items(pod, "metadata", "ownerReferences"))
