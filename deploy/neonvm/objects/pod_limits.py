"""Bounds a guest by the limits of its pod: beyond them the kubelet kills QEMU, or slows it down (pure).

They come from ``spec.podResources``, from a LimitRange, or from a webhook; the pod as it is stored says them all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from deploy.neonvm.objects.pods import runner_of
from deploy.neonvm.texts import controller as texts
from protocol.kubernetes.managed_fields import ManagedFields, limited_by
from protocol.kubernetes.objects import Json, child
from protocol.names import SCHEDULER_NAME
from protocol.running_machine import RunningMachine
from protocol.units import Bytes, MilliCpu, QuantityError

QEMU_OWN: Final = Bytes.parse("256Mi")
"""Memory that QEMU and the runner need beside the guest's own."""


def within_limits(machine: RunningMachine, pod: Json, slot: Bytes) -> RunningMachine:
    """``machine`` as far as the limits of ``pod`` let it grow, its memory in whole slots above what it boots with. The
    guest has in any case what it boots with: a limit below that kills it, and ``limits_say`` reports it.
    """
    cpu, mem = _limit(pod, "cpu"), _limit(pod, "memory")
    if cpu is not None:
        machine = replace(machine, cpu_max=min(machine.cpu_max, MilliCpu.parse(cpu)))
    if mem is not None:
        # Memory is plugged in whole slots, so a limit in between is rounded down.
        left = Bytes.parse(mem).minus_or_zero(QEMU_OWN).minus_or_zero(machine.mem_min).down_to(slot)
        machine = replace(machine, mem_max=min(machine.mem_max, machine.mem_min + left))
    return machine


def limits_say(machine: RunningMachine, pod: Json, slot: Bytes) -> str:
    """The limits of ``pod`` that keep its guest from growing to what ``machine`` can take; empty if none."""
    usable, problems = within_limits(machine, pod, slot), list[str]()
    if usable.cpu_max < machine.cpu_max:
        problems.append(texts.CPU_LIMITED.format(limit=_limit(pod, "cpu"), most=machine.cpu_max))
    mem = _limit(pod, "memory")
    if mem is not None and Bytes.parse(mem) < machine.mem_min + QEMU_OWN:
        problems.append(texts.MEMORY_TOO_LOW.format(limit=mem, least=machine.mem_min, qemu=QEMU_OWN))
    elif usable.mem_max < machine.mem_max:
        most, reachable = machine.mem_max, usable.mem_max
        problems.append(texts.MEMORY_LIMITED.format(limit=mem, qemu=QEMU_OWN, usable=reachable, most=most))
    return "; ".join(problems)


def _limit(pod: Json, name: str) -> str | None:
    """A limit of the guest's container; None if there is none that can be read."""
    # The CPU limit that our scheduler writes follows the VM, so it bounds nothing.
    if name == "cpu" and "cpu" in limited_by(SCHEDULER_NAME, _managed(pod)):
        return None
    limit = child(runner_of(pod), "resources", "limits").get(name)
    try:
        # Webhooks also write limits as numbers; a bool would be read as 1.
        amount = None if limit is None or isinstance(limit, bool) else str(limit)
        # A limit of zero means "no limit" to the kubelet.
        is_positive = amount is not None and bool((MilliCpu if name == "cpu" else Bytes).parse(amount).value)
    except QuantityError:
        return None
    return amount if is_positive else None


def _managed(pod: Json) -> list[ManagedFields]:
    try:
        return msgspec.convert(child(pod, "metadata").get("managedFields") or [], list[ManagedFields])
    # Managed fields are written by clients; a broken one must not stop the controller.
    except (msgspec.ValidationError, RecursionError):
        return []
