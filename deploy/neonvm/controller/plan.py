"""Plans the next step of one VirtualMachine from what is true now (pure).

The plan depends on the object, its pod and its guest alone, never on what happened before. ``status`` says what the
guest has, as the guest reports it; never what the spec asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from deploy.neonvm.objects.booted import Booted, booted, limits_say, within_limits
from deploy.neonvm.objects.owners import is_owned_by
from deploy.neonvm.objects.pods import MOVED, pod_end
from deploy.neonvm.objects.vm_spec import (
    ENDED,
    FAILED,
    FINALIZER,
    MIGRATING,
    PENDING,
    PRE_MIGRATING,
    RUNNING,
    SCALING,
    finalizers_of,
    restarts,
)
from deploy.neonvm.ports import CPU, MEMORY, Acceleration, GuestPhase, GuestState
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.texts.controller import Reasoned, reasoned
from protocol.kubernetes.conditions import condition
from protocol.kubernetes.objects import Json, child, is_leaving, is_over, name_of, node_of, pod_phase, text, whole
from protocol.messages import ObjectName
from protocol.running_machine import RunningMachine
from protocol.units import Resources
from protocol.virtual_machine import VirtualMachine


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The migration of the VM that has begun and not ended. ``is_placed``: its target has, or had, a node.
    ``is_transferring``: it is beyond its preparation. ``target_guest`` is what the guest has in the target's pod once
    it runs there, None before.
    """

    source: str
    target: str
    is_placed: bool
    is_transferring: bool
    target_pod: Json | None
    target_guest: GuestState | None


@dataclass(frozen=True, slots=True)
class VmObservation:
    """Inputs of the plan. ``machine`` is None if the spec is unusable, and ``fault`` then says why.

    ``guest`` is what the guest has (None if none is known here); ``guest_fault`` the guest's last refusal.
    ``restart_due`` says that the pause before a restart is over. ``new_pod_name`` draws a name that was never used.
    ``is_known``: the guest has been looked at, whatever there was to see. ``acceleration`` is how fast it runs there.
    ``stalled`` names what of an order the guest has not followed for too long: ``cpu``, ``memory``.
    ``others`` are the VM's pods beside ``pod``; ``under_way`` the migration that has begun, if any.
    """

    vm: Json
    machine: VirtualMachine | None
    fault: str
    pod: Json | None
    guest: GuestState | None
    guest_fault: str
    vm_address: str
    restart_due: bool
    new_pod_name: Callable[[], str]
    others: tuple[Json, ...] = ()
    under_way: UnderWay | None = None
    is_known: bool = True
    acceleration: Acceleration | None = None
    stalled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class VmPlan:
    """``status`` is merged into the object's status where it differs; the rest is done in the order of the fields.
    ``remake_pod``: the pod has no node, and would boot with more than the VM now asks for. It is deleted as long as
    that is so, and made again. ``hold`` stops resizing the guest; ``strays`` are pods that the VM no longer needs.
    """

    status: Json
    add_finalizer: bool = False
    create_pod: bool = False
    delete_pod: bool = False
    remake_pod: bool = False
    remove_finalizer: bool = False
    want: Resources | None = None
    hold: bool = False
    wait_for_restart: bool = False
    strays: tuple[ObjectName, ...] = ()


def plan(facts: VmObservation) -> VmPlan:
    """The actions due now; empty if all is well."""
    has_finalizer = FINALIZER in finalizers_of(facts.vm)
    if is_leaving(facts.vm):
        return _leave(facts) if has_finalizer else VmPlan({})
    if not has_finalizer:
        return VmPlan({}, add_finalizer=True)
    moves = facts.under_way
    # Once the target has a node the VM is held, and the end of the source pod decides nothing: only the migration knows
    # whether the guest died or moved. While no node has room for the target, the VM scales on.
    if moves is not None and moves.is_placed and moves.source == text(facts.vm, "status", "podName"):
        return _moving(facts, moves)
    return replace(_stay(facts), strays=_strays(facts))


def _stay(facts: VmObservation) -> VmPlan:
    if facts.machine is None:
        return VmPlan({"conditions": [_available(facts.vm, False, (texts.INVALID_SPEC, facts.fault))]})
    if not text(facts.vm, "status", "podName"):
        return VmPlan(_named(facts))
    if facts.pod is None:
        return _without_pod(facts)
    return _ended(facts, facts.pod) if is_over(facts.pod) else _with_pod(facts, facts.machine, facts.pod)


_NO_GUEST: Final[Json] = {"podIP": None, "node": None, "cpus": None, "memorySize": None, "machine": None}


def _named(facts: VmObservation) -> Json:
    """Status that names a new pod, and the VM's address, before the pod exists."""
    # In the status before the pod is created, so that a restarted controller does not create a second one.
    return {"phase": PENDING, "podName": facts.new_pod_name(), **_NO_GUEST, "extraNetIP": facts.vm_address or None}


def _leave(facts: VmObservation) -> VmPlan:
    if facts.pod is None:
        # Until every pod is gone, one of them may still use the disk or the address.
        return VmPlan({}, remove_finalizer=not facts.others, strays=_strays(facts))
    return VmPlan({}, delete_pod=not is_leaving(facts.pod), strays=_strays(facts))


def _strays(facts: VmObservation) -> tuple[ObjectName, ...]:
    # The migration deletes its own pods.
    used = {facts.under_way.source, facts.under_way.target} if facts.under_way is not None else set()
    unclaimed = [pod for pod in facts.others if is_owned_by(pod, facts.vm) and not is_leaving(pod)]
    return tuple(name_of(pod) for pod in unclaimed if name_of(pod).name not in used)


def _without_pod(facts: VmObservation) -> VmPlan:
    phase = text(facts.vm, "status", "phase")
    if phase in {"", PENDING}:
        # Only when no other pod is left: the disk is never opened twice.
        return VmPlan({}, create_pod=not any(not is_over(other) for other in facts.others))
    if phase not in ENDED:
        # A pod that vanished without ending, with its node or by hand, counts as failed.
        gone = _available(facts.vm, False, reasoned(texts.POD_GONE, pod=text(facts.vm, "status", "podName")))
        return VmPlan({"phase": FAILED, "conditions": [gone], **_NO_GUEST})
    if not restarts(facts.vm, phase):
        return VmPlan({})
    if not facts.restart_due:
        return VmPlan({}, wait_for_restart=True)
    count = whole(facts.vm, "status", "restartCount") + 1
    return VmPlan({**_named(facts), "restartCount": count})


def _ended(facts: VmObservation, pod: Json) -> VmPlan:
    phase, end = pod_phase(pod), pod_end(pod)
    if end[0] == MOVED:
        # The guest has moved away while the VM still names this pod: it was lost at its target.
        phase, end = FAILED, reasoned(texts.GUEST_LOST, story=end[1])
    ended = _available(facts.vm, False, end)
    again = restarts(facts.vm, phase) and not is_leaving(pod)
    return VmPlan({"phase": phase, "conditions": [ended], **_NO_GUEST}, delete_pod=again)


def _with_pod(facts: VmObservation, machine: VirtualMachine, pod: Json) -> VmPlan:
    made = booted(pod)
    if made is None and not is_leaving(pod):
        unknown = reasoned(texts.UNKNOWN_MACHINE, pod=name_of(pod).name)
        return VmPlan({"conditions": [_available(facts.vm, False, unknown)]})
    # Report nothing about a guest that has not been looked at yet.
    if made is None or is_leaving(pod) or (pod_phase(pod) == RUNNING and not facts.is_known):
        return VmPlan({})
    if pod_phase(pod) != RUNNING or facts.guest is None or facts.guest.phase is GuestPhase.STOPPED:
        waiting = _available(facts.vm, False, texts.POD_PENDING)
        # A pod without a node can be replaced by a smaller one: the VM may have been lowered to make it fit.
        is_too_large = not node_of(pod) and not made.use.within(machine.use)
        return VmPlan(
            {"phase": PENDING, "conditions": [waiting], "node": node_of(pod) or None}, remake_pod=is_too_large
        )
    # What the guest can be given is fixed when its pod is made, so orders are clipped to it.
    guest, want = facts.guest, _usable(facts, made, pod).clip(machine.use)
    differs = {CPU: guest.cpu != want.cpu, MEMORY: guest.mem != want.mem}
    behind = {name for name in differs if differs[name] and guest.phase is GuestPhase.RUNNING}
    place = _in_place(facts, pod, guest)
    conditions = [
        _serves(facts, guest),
        *_accelerated(facts),
        *_beyond(facts, pod),
        *_stalled(facts, guest, want, behind),
    ]
    # A stalled guest no longer counts as scaling; its condition says that it has stalled.
    status: Json = {"phase": SCALING if behind - facts.stalled else RUNNING, **place, "conditions": conditions}
    # The revision is reported once the guest really has what this spec asks for.
    if guest.phase is GuestPhase.RUNNING and not behind and want == machine.use:
        status |= _revision(facts.vm)
    return VmPlan(status, want=want)


def _moving(facts: VmObservation, under_way: UnderWay) -> VmPlan:
    """The VM while it is moved: held where it is, and in the target from the moment its guest runs there."""
    if under_way.target_pod is not None and under_way.target_guest is not None:
        place = _in_place(facts, under_way.target_pod, under_way.target_guest)
        conditions = [_available(facts.vm, True, texts.GUEST_RUNS), *_beyond(facts, under_way.target_pod)]
        # The VM names the target first; only then does the migration succeed.
        return VmPlan({"podName": under_way.target, "phase": RUNNING, **place, "conditions": conditions})
    phase = MIGRATING if under_way.is_transferring else PRE_MIGRATING
    if facts.pod is None or facts.guest is None or facts.guest.phase is GuestPhase.STOPPED:
        return VmPlan({"phase": phase}, hold=True)
    conditions = [_available(facts.vm, True, texts.BEING_MOVED), *_beyond(facts, facts.pod)]
    return VmPlan({"phase": phase, **_in_place(facts, facts.pod, facts.guest), "conditions": conditions}, hold=True)


def _in_place(facts: VmObservation, pod: Json, guest: GuestState) -> Json:
    """Place and size of the guest. It keeps the address it was started with, even another controller's."""
    made = booted(pod)
    return {
        "node": node_of(pod),
        "podIP": text(pod, "status", "podIP"),
        "extraNetIP": text(facts.vm, "status", "extraNetIP") or facts.vm_address or None,
        "cpus": guest.cpu.quantity(),
        "memorySize": guest.mem.quantity(),
        "machine": None if made is None else _usable(facts, made, pod).as_status(),
    }


def _revision(vm: Json) -> Json:
    """The revision of the spec that the guest has reached, if the spec names one; it is dated when it is written."""
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
    """Conditions that say why the running machine, within its pod's limits, cannot satisfy the spec."""
    made, machine, name = booted(pod), facts.machine, name_of(pod).name
    if made is None or machine is None:
        return []
    running, low, high = made.machine, machine.bounds.min, machine.bounds.max
    pairs = [
        ("CPU max", running.cpu_max, high.cpu),
        ("memory min", running.mem_min, low.mem),
        ("memory max", running.mem_max, high.mem),
    ]
    differences = "; ".join(
        texts.DIFFERENCE.format(what=what, has=has, wanted=wanted) for what, has, wanted in pairs if has != wanted
    )
    problems = limits_say(running, pod, machine.slot_size)
    changed = reasoned(texts.SPEC_CHANGED, differences=differences, pod=name)
    limited = reasoned(texts.POD_LIMITS, pod=name, problems=problems)
    return [
        *([condition(facts.vm, "RestartRequired", "True", *changed)] if differences else []),
        *([condition(facts.vm, "LimitedByPod", "True", *limited)] if problems else []),
    ]


def _usable(facts: VmObservation, made: Booted, pod: Json) -> RunningMachine:
    """The machine the guest can get: the one it booted with, within its pod's limits."""
    # An unusable spec names no slot size: memory above the boot size then counts as one slot.
    slot = made.machine.mem_max if facts.machine is None else facts.machine.slot_size
    return within_limits(made.machine, pod, slot)


def _stalled(facts: VmObservation, guest: GuestState, want: Resources, behind: set[str]) -> list[Json]:
    resources = " and ".join(sorted(behind & facts.stalled))
    if not resources:
        return []
    has = Resources(guest.cpu, guest.mem)
    stalled = reasoned(texts.GUEST_DOES_NOT_FOLLOW, resources=resources, want=want, has=has)
    return [condition(facts.vm, "ResizeStalled", "True", *stalled)]


def _available(vm: Json, value: bool, why: Reasoned) -> Json:
    return condition(vm, "Available", str(value), *why)
