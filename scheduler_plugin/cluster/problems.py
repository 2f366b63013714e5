"""Problems with objects of the cluster, for Events and ``/explain``."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from protocol.field_errors import shown
from protocol.kubernetes.pages import Unreadable
from protocol.kubernetes.resources import PODS, Resource
from protocol.messages import ObjectName
from protocol.names import LABEL_WEIGHT
from protocol.pod_database import PodDatabase
from protocol.runtime.kubernetes.events import EventRecord, EventSubject, about_vm
from protocol.units import Amount, Bytes, ComputeUnit
from protocol.virtual_machine import Bounds, VirtualMachine
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.cluster.virtual_machines import weight_of
from scheduler_plugin.ledger.facts import DEFAULT_WEIGHT, MAX_WEIGHT, PodFacts
from scheduler_plugin.settings.document import SchedulerSettings
from scheduler_plugin.texts import events, explanations

_LONGEST_NAME: Final = 200  # of an object, in the name of an Event: both have at most 253 characters


def unreadable_objects(feed: Feed) -> Iterator[tuple[Resource, Unreadable]]:
    """All objects that cannot be decoded now."""
    for informer in feed.informers:
        for unreadable in informer.unreadable.values():
            yield informer.kind.resource, unreadable


def unreadable_event(resource: Resource, unreadable: Unreadable) -> EventRecord:
    """The Event for an object that cannot be decoded."""
    # One Event per version of the object: a repeated name is a 409. The UID distinguishes recreated objects.
    name = f"{unreadable.name.name[:_LONGEST_NAME]}.unreadable.{unreadable.uid[:8]}.{unreadable.version or 0}"
    return EventRecord(
        EventSubject(resource, unreadable.name, unreadable.uid), *events.unreadable(unreadable.reason), name=name
    )


def vm_problems(vm: VirtualMachine, settings: SchedulerSettings) -> list[events.EventText]:
    """Problems of a readable VM."""
    problems = [(events.PARTLY_UNREADABLE, problem) for problem in vm.problems]
    # The compute unit is set per node, but the VM's owner sees its jumps (S4.6). Pods are not resized in units.
    if vm.enabled and not isinstance(vm, PodDatabase):
        unit = unit_mismatch(vm.bounds, vm.slot_size, settings.policy_of(vm.node or "").compute_unit)
        problems += [] if unit is None else [(events.UNIT_MISFIT, unit)]
    if LABEL_WEIGHT in vm.labels and weight_of(vm) is None:
        problems.append(
            events.weight_unreadable(LABEL_WEIGHT, MAX_WEIGHT, shown(vm.labels[LABEL_WEIGHT]), DEFAULT_WEIGHT)
        )
    return problems


def vm_events(vm: VirtualMachine, settings: SchedulerSettings) -> list[EventRecord]:
    """Problems of a VM, as Events."""
    return [_event(about_vm(vm), *problem) for problem in vm_problems(vm, settings)]


def notes_on(feed: Feed, vm: ObjectName) -> list[str]:
    """Problems of a VM and of the pods that run it, for ``/explain``."""
    pod = feed.databases.known.get(vm)
    if pod is not None:
        return [problem for _, problem in pod_problems(feed, pod)]
    current, bad = feed.vms.facts.get(vm), feed.vms.unreadable.get(vm)
    notes = [] if bad is None else [explanations.VM_UNREADABLE.format(vm=vm, why=bad.reason)]
    # The cached stand-in of an unreadable VM has no meaningful problems.
    if current is not None and bad is None:
        notes += [note for _, note in vm_problems(current, feed.settings)]
    for name, unreadable in feed.pods.unreadable.items():
        pod = feed.pods.facts.get(name)
        if pod is not None and pod.vm == vm:
            notes.append(explanations.POD_UNREADABLE.format(pod=name, why=unreadable.reason))
    return notes


def pod_problems(feed: Feed, pod: PodFacts) -> list[events.EventText]:
    """Problems of a pod that opted in."""
    if pod.database is None:
        return [events.not_resized(explanations.POD_UNSERVED.format(pod=pod.name, why=pod.resize_problem))]
    why = feed.databases.refusal(pod.database)
    return [*([events.not_resized(why)] if why else []), *vm_problems(pod.database, feed.settings)]


def pod_events(feed: Feed, pod: PodFacts) -> list[EventRecord]:
    """Problems of a pod that opted in, as Events."""
    about, problems = EventSubject(PODS, pod.name, pod.uid), pod_problems(feed, pod)
    # Temporary, or the API server's fault. Thousands of these would delay other events.
    return [_event(about, reason, note) for reason, note in problems if note != explanations.NOT_READ_YET]


def _event(about: EventSubject, reason: str, note: str) -> EventRecord:
    # The note's checksum makes one Event per wording, so that a lasting problem is reported once.
    name = f"{about.name.name[:_LONGEST_NAME]}.{reason.lower()}.{zlib.crc32(note.encode()):08x}"
    return EventRecord(about, reason, note, name=name)


def unit_mismatch(bounds: Bounds, slot_size: Bytes, unit: ComputeUnit) -> str | None:
    """The reason why VMs with these bounds cannot be sized well in this unit; None if they can.

    Ignores a resource with equal bounds.
    """
    cpu = _amount_mismatch("CPU", bounds.min.cpu, bounds.max.cpu, unit.cpu)
    memory = _amount_mismatch("memory", bounds.min.mem, bounds.max.mem, unit.mem)
    # Memory is plugged in slots, so other units are always rounded.
    if memory is None and bounds.min.mem < bounds.max.mem and not unit.mem.is_multiple_of(slot_size):
        memory = events.SLOTS_MISFIT.format(unit=unit.mem, slot=slot_size)
    return "; ".join(filter(None, (cpu, memory))) or None


def _amount_mismatch(what: str, least: Amount, most: Amount, unit: Amount) -> str | None:
    if least.value == most.value:
        return None
    # Any growth would jump to the maximum.
    if unit.value > most.value - least.value:
        return events.UNIT_TOO_LARGE.format(what=what, unit=unit, least=least, most=most)
    if least.value % unit.value or most.value % unit.value:
        return events.BOUNDS_MISFIT.format(what=what, unit=unit, least=least, most=most)
    return None
