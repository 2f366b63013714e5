"""Plans the next step of one VirtualMachine from observed state (pure).

The plan is level-triggered: it depends on the object, its pod and its guest, never on history. ``status`` has the size
that the guest reports, never the one in the spec.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from deploy.neonvm.controller.sleep_plan import last_sleep_status, lost_sleep_status, plan_asleep, plan_sleep, sleeps
from deploy.neonvm.controller.vm_facts import ActiveMigration, VmObservation, VmPlan
from deploy.neonvm.objects.boot_record import BootRecord, boot_record, limit_problems, within_limits
from deploy.neonvm.objects.owners import is_owned_by
from deploy.neonvm.objects.pods import MOVED, pod_end
from deploy.neonvm.objects.vm_spec import (
    ENDED,
    FAILED,
    MIGRATING,
    PENDING,
    PRE_MIGRATING,
    RUNNING,
    SCALING,
    finalizers_of,
    restarts,
)
from deploy.neonvm.ports import CPU, MEMORY, GuestPhase, GuestState
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.texts.controller import Reasoned, reasoned
from protocol.guest.sleep import is_asleep
from protocol.kubernetes.conditions import condition
from protocol.kubernetes.objects import (
    Json,
    child,
    has_finished,
    integer,
    is_terminating,
    name_of,
    node_of,
    pod_phase,
    text,
)
from protocol.messages import ObjectName
from protocol.names import FINALIZER
from protocol.running_machine import RunningMachine
from protocol.units import Resources
from protocol.virtual_machine import VirtualMachine


def plan(facts: VmObservation) -> VmPlan:
    """The actions due now; an empty plan if there are none."""
    has_finalizer = FINALIZER in finalizers_of(facts.vm)
    if is_terminating(facts.vm):
        return _leave(facts) if has_finalizer else VmPlan({})
    if not has_finalizer:
        return VmPlan({}, add_finalizer=True)
    migration = facts.active_migration
    # A sleeping guest reserves nothing here, so its phase stays until it runs, here or in the target.
    if sleeps(facts) and (migration is None or migration.target_guest is None):
        migration = None
    # Once the target has a node, the VM is held, and the end of the source pod is ignored: only the migration can tell
    # whether the guest died or was migrated. Until then the VM keeps scaling.
    if migration is not None and migration.is_placed and migration.source == text(facts.vm, "status", "podName"):
        return _moving(facts, migration)
    return replace(_stay(facts), unneeded_pods=_unneeded_pods(facts))


def _stay(facts: VmObservation) -> VmPlan:
    if facts.machine is None:
        return VmPlan({"conditions": [_available(facts.vm, False, (texts.INVALID_SPEC, facts.fault))]})
    if not text(facts.vm, "status", "podName"):
        return VmPlan(_named(facts))
    if facts.pod is None:
        return _without_pod(facts)
    return _ended(facts, facts.pod) if has_finished(facts.pod) else _with_pod(facts, facts.machine, facts.pod)


_NO_SIZE: Final[Json] = {"cpus": None, "memorySize": None, "growingTo": None}
_NO_GUEST: Final[Json] = {"podIP": None, "node": None, **_NO_SIZE, "machine": None}


def _named(facts: VmObservation) -> Json:
    """Status with the name of a new pod, which does not exist yet, and the VM's address."""
    # In the status before the pod is created, so that a restarted controller does not create a second one.
    named: Json = {"podName": facts.new_pod_name(), **_NO_GUEST, "extraNetIP": facts.vm_address or None}
    return {"phase": PENDING, **named, **lost_sleep_status(facts.vm)}


def _leave(facts: VmObservation) -> VmPlan:
    if facts.pod is None:
        # Until the last pod is gone, the disk or the address may be in use.
        return VmPlan({}, remove_finalizer=not facts.others, unneeded_pods=_unneeded_pods(facts))
    return VmPlan({}, delete_pod=not is_terminating(facts.pod), unneeded_pods=_unneeded_pods(facts))


def _unneeded_pods(facts: VmObservation) -> tuple[ObjectName, ...]:
    # The migration deletes its own pods.
    used = (
        {facts.active_migration.source, facts.active_migration.target} if facts.active_migration is not None else set()
    )
    unclaimed = [pod for pod in facts.others if is_owned_by(pod, facts.vm) and not is_terminating(pod)]
    return tuple(name_of(pod) for pod in unclaimed if name_of(pod).name not in used)


def _without_pod(facts: VmObservation) -> VmPlan:
    phase = text(facts.vm, "status", "phase")
    if phase in {"", PENDING}:
        # Only when no other pod is left, so that the disk is never opened twice.
        return VmPlan({}, create_pod=not any(not has_finished(other) for other in facts.others))
    if phase not in ENDED:
        # A pod deleted without having ended, with its node or by hand, counts as failed.
        gone = _available(facts.vm, False, reasoned(texts.POD_GONE, pod=text(facts.vm, "status", "podName")))
        return VmPlan({"phase": FAILED, "conditions": [gone], **_NO_GUEST})
    return _restarted(facts, phase)


def _restarted(facts: VmObservation, phase: str) -> VmPlan:
    """Plan for a VM that has ended with ``phase``, and whose pod is gone or will never run again."""
    if not restarts(facts.vm, phase):
        return VmPlan({})
    if not facts.restart_due:
        return VmPlan({}, wait_for_restart=True)
    count = integer(facts.vm, "status", "restartCount") + 1
    return VmPlan({**_named(facts), "restartCount": count})


def _ended(facts: VmObservation, pod: Json) -> VmPlan:
    phase, end = pod_phase(pod), pod_end(pod)
    if end[0] == MOVED:
        # The guest was migrated away, but the VM's podName is still this pod: the guest was lost on the target.
        phase, end = FAILED, reasoned(texts.GUEST_LOST, message=end[1])
    ended = _available(facts.vm, False, end)
    # The finalizer of another program may keep the pod for long.
    if is_terminating(pod) and text(facts.vm, "status", "phase") == phase:
        return _restarted(facts, phase)
    again = restarts(facts.vm, phase) and not is_terminating(pod)
    return VmPlan({"phase": phase, "conditions": [ended], **_NO_GUEST}, delete_pod=again)


def _with_pod(facts: VmObservation, machine: VirtualMachine, pod: Json) -> VmPlan:
    record = boot_record(pod)
    if record is None and not is_terminating(pod):
        unknown = reasoned(texts.UNKNOWN_MACHINE, pod=name_of(pod).name)
        return VmPlan({"conditions": [_available(facts.vm, False, unknown)]})
    if record is None or is_terminating(pod):
        return VmPlan({})
    if pod_phase(pod) == RUNNING and not facts.is_known:
        return VmPlan(_unpolled(facts))
    if pod_phase(pod) != RUNNING or facts.guest is None or facts.guest.phase is GuestPhase.STOPPED:
        waiting = _available(facts.vm, False, texts.POD_PENDING)
        # Replace an unscheduled pod by a smaller one if the VM has been reduced to make it fit.
        is_too_large = not node_of(pod) and not record.use.within(machine.use)
        return VmPlan(
            {"phase": PENDING, "conditions": [waiting], "node": node_of(pod) or None}, remake_pod=is_too_large
        )
    # The maximum size is fixed when the pod is created, so clip to it.
    guest, desired = facts.guest, _usable(facts, record, pod).clip(machine.use)
    if sleeps(facts):
        location = {**_location(facts, pod, guest), **_NO_SIZE}
        conditions = [*_accelerated(facts), *_beyond(facts, pod)]
        return plan_asleep(facts, machine, desired, {**location, "conditions": conditions})
    differs = {CPU: guest.cpu != desired.cpu, MEMORY: guest.mem != desired.mem}
    behind = {name for name in differs if differs[name] and guest.phase is GuestPhase.RUNNING}
    location = _location(facts, pod, guest)
    conditions = [
        _serves(facts, guest),
        *_accelerated(facts),
        *_beyond(facts, pod),
        *_stalled(facts, guest, desired, behind),
    ]
    # A stalled guest does not count as scaling; it has the condition ResizeStalled.
    status: Json = {"phase": SCALING if behind - facts.stalled else RUNNING, **location, "conditions": conditions}
    # Report the revision once the guest has the size of this spec.
    if guest.phase is GuestPhase.RUNNING and not behind and desired == machine.use:
        status |= _revision(facts.vm)
    has_settled = status["phase"] == RUNNING and not any(differs.values())
    return plan_sleep(VmPlan(status, desired=desired), facts, machine, has_settled=has_settled)


def _unpolled(facts: VmObservation) -> Json:
    """Status of a VM whose guest has not been polled yet."""
    # For a running VM, keep the report of an earlier leader.
    if not facts.guest_fault or text(facts.vm, "status", "phase") != PENDING:
        return {}
    return {"conditions": [_available(facts.vm, False, reasoned(texts.RUNNER_UNKNOWN, fault=facts.guest_fault))]}


def _moving(facts: VmObservation, migration: ActiveMigration) -> VmPlan:
    """Plan during a migration: hold the guest, and switch to the target once the guest runs there."""
    if migration.target_pod is not None and migration.target_guest is not None:
        location = _location(facts, migration.target_pod, migration.target_guest)
        conditions = [_available(facts.vm, True, texts.GUEST_RUNS), *_beyond(facts, migration.target_pod)]
        # The VM's podName changes first; only then does the migration succeed.
        arrived = {"podName": migration.target, "phase": RUNNING, **location, "conditions": conditions}
        return VmPlan({**arrived, **last_sleep_status(facts)})
    phase = MIGRATING if migration.is_transferring else PRE_MIGRATING
    if facts.pod is None or facts.guest is None or facts.guest.phase is GuestPhase.STOPPED:
        # A sleeping guest was handed over or lost, and not observed in the target yet: nothing runs until then.
        return VmPlan({"phase": text(facts.vm, "status", "phase") if is_asleep(facts.vm) else phase}, hold=True)
    conditions = [_available(facts.vm, True, texts.BEING_MOVED), *_beyond(facts, facts.pod)]
    location = _location(facts, facts.pod, facts.guest)
    return VmPlan({"phase": phase, **location, "conditions": conditions, **last_sleep_status(facts)}, hold=True)


def _location(facts: VmObservation, pod: Json, guest: GuestState) -> Json:
    """Status fields with location and size of the guest. The address with which it was started is kept."""
    record = boot_record(pod)
    return {
        "node": node_of(pod),
        "podIP": text(pod, "status", "podIP"),
        "extraNetIP": text(facts.vm, "status", "extraNetIP") or facts.vm_address or None,
        "cpus": guest.cpu.quantity(),
        "memorySize": guest.mem.quantity(),
        "machine": None if record is None else _usable(facts, record, pod).as_status(),
    }


def _revision(vm: Json) -> Json:
    """``currentRevision`` if the guest has reached a new revision of the spec, without its timestamp."""
    revision = child(vm, "spec", "targetRevision", "revision")
    is_said = child(vm, "status", "currentRevision", "revision") == revision
    return {"currentRevision": {"revision": revision}} if revision and not is_said else {}


def _serves(facts: VmObservation, guest: GuestState) -> Json:
    if guest.phase is GuestPhase.BOOTING:
        return _available(facts.vm, False, texts.GUEST_BOOTS)
    refused = reasoned(texts.RESIZE_REFUSED, fault=facts.guest_fault)
    return _available(facts.vm, True, refused if facts.guest_fault else texts.GUEST_RUNS)


def _accelerated(facts: VmObservation) -> list[Json]:
    acceleration = facts.acceleration
    if acceleration is None:
        return []
    reason = texts.ACCELERATED if acceleration.is_on else texts.EMULATED
    return [condition(facts.vm, "Accelerated", str(acceleration.is_on), *reasoned(reason, why=acceleration.reason))]


def _beyond(facts: VmObservation, pod: Json) -> list[Json]:
    """Conditions for a running machine that cannot satisfy the spec, or is limited by its pod."""
    record, machine, name = boot_record(pod), facts.machine, name_of(pod).name
    if record is None or machine is None:
        return []
    running, low, high = record.machine, machine.bounds.min, machine.bounds.max
    pairs = [
        ("CPU max", running.cpu_max, high.cpu),
        ("memory min", running.mem_min, low.mem),
        ("memory max", running.mem_max, high.mem),
    ]
    differences = "; ".join(
        texts.DIFFERENCE.format(what=what, actual=actual, spec=spec) for what, actual, spec in pairs if actual != spec
    )
    problems = limit_problems(running, pod, machine.slot_size)
    changed = reasoned(texts.SPEC_CHANGED, differences=differences, pod=name)
    limited = reasoned(texts.POD_LIMITS, pod=name, problems=problems)
    return [
        *([condition(facts.vm, "RestartRequired", "True", *changed)] if differences else []),
        *([condition(facts.vm, "LimitedByPod", "True", *limited)] if problems else []),
    ]


def _usable(facts: VmObservation, record: BootRecord, pod: Json) -> RunningMachine:
    """The machine that the guest booted with, within its pod's limits."""
    # An invalid spec has no slot size; memory above the boot size then counts as one slot.
    slot = record.machine.mem_max if facts.machine is None else facts.machine.slot_size
    return within_limits(record.machine, pod, slot)


def _stalled(facts: VmObservation, guest: GuestState, desired: Resources, behind: set[str]) -> list[Json]:
    resources = " and ".join(sorted(behind & facts.stalled))
    if not resources:
        return []
    actual = Resources(guest.cpu, guest.mem)
    stalled = reasoned(texts.RESIZE_STALLED, resources=resources, desired=desired, actual=actual)
    return [condition(facts.vm, "ResizeStalled", "True", *stalled)]


def _available(vm: Json, value: bool, why: Reasoned) -> Json:
    return condition(vm, "Available", str(value), *why)
