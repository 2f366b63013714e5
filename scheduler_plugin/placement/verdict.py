"""Verdict on a pod and a node, the same for filter and bind (S4.10).

Rules:

- A pod fits if its claim is within the node's free room, without the system reserve, for CPU and memory.
- ``Refused`` may change when other pods leave (FailedNodes: preemption may help); ``NeverFits`` does not
  (FailedAndUnresolvableNodes). An unknown node is ``Refused``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from protocol.units import ZERO, Resources
from scheduler_plugin.texts import refusals


class Room(msgspec.Struct, frozen=True, gc=False):
    """Room of one node."""

    node: str
    total: Resources  # for pods
    reserved: Resources
    free: Resources  # for new pods and ordinary growth
    watermark: Resources  # above this level the node is under pressure
    is_open: bool  # False if cordoned
    price: float = 0.0  # per hour
    for_waking: Resources = ZERO  # only for VMs that sleep there
    growth: Resources = ZERO  # largest possible growth of one VM there, for each resource

    @property
    def unreserved(self) -> Resources:
        """All unreserved room."""
        return self.free + self.for_waking


@dataclass(frozen=True, slots=True)
class Fits:
    """The pod fits now."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod does not fit now; it may when others leave or shrink."""

    message: str


@dataclass(frozen=True, slots=True)
class NeverFits:
    """The pod does not fit even if other pods leave."""

    message: str


Verdict = Fits | Refused | NeverFits

FITS: Final = Fits()
UNKNOWN_NODE: Final = Refused(refusals.UNKNOWN_NODE)
CORDONED: Final = NeverFits(refusals.UNSCHEDULABLE)
NO_FREE_CPU: Final = Refused(refusals.INSUFFICIENT.format(resource="cpu"))
NO_FREE_MEM: Final = Refused(refusals.INSUFFICIENT.format(resource="memory"))
CPU_TOO_SMALL: Final = NeverFits(refusals.TOO_SMALL.format(resource="cpu"))
MEM_TOO_SMALL: Final = NeverFits(refusals.TOO_SMALL.format(resource="memory"))


def verdict(room: Room | None, claim: Resources) -> Verdict:
    """Verdict on a new claim in ``room``; None is an unknown node."""
    if room is None:
        return UNKNOWN_NODE
    if not room.is_open:
        return CORDONED
    cpu, mem = claim.cpu.value, claim.mem.value  # integers for speed: runs for every node of every pending pod
    if cpu <= room.free.cpu.value and mem <= room.free.mem.value:
        return FITS
    # More than the whole node: preemption cannot help.
    if cpu > room.total.cpu.value:
        return CPU_TOO_SMALL
    if mem > room.total.mem.value:
        return MEM_TOO_SMALL
    return NO_FREE_CPU if cpu > room.free.cpu.value else NO_FREE_MEM


def shortage(room: Room, claim: Resources) -> str:
    """The numbers of a refusal: the pod's size, and the node's free and total room."""
    return refusals.SHORTAGE.format(claim=claim, room=room)


@dataclass(frozen=True, slots=True)
class Filtered:
    """The nodes that a pod fits, and the refusals of the others."""

    fits: list[str]
    refused: dict[str, str]
    never: dict[str, str]


def filter_nodes(rooms: Mapping[str, Room], names: Sequence[str], claim: Resources) -> Filtered:
    """``verdict`` for each of ``names``, in their order."""
    return group_by_verdict(names, {name: verdict(rooms.get(name), claim) for name in names})


def group_by_verdict(names: Sequence[str], verdicts: Mapping[str, Verdict]) -> Filtered:
    """Group ``names`` by verdict, in their order; names without a verdict are unknown nodes."""
    fits = [name for name in names if verdicts.get(name) is FITS]
    filtered = Filtered(fits, {}, {})
    if len(fits) < len(names):
        for name in names:
            judged = verdicts.get(name, UNKNOWN_NODE)
            if isinstance(judged, Refused):
                filtered.refused[name] = judged.message
            elif isinstance(judged, NeverFits):
                filtered.never[name] = judged.message
    return filtered
