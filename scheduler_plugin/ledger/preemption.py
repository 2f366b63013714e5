"""Judgement of preemptions, by the same verdict as filter and bind (S4.10). Pure.

kube-scheduler proposes nodes with victims by its own accounting; here each proposal is checked against the ledger, by
which a VM may hold more than its pod requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from msgspec.structs import replace

from protocol.units import Resources
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.placement import FITS, Room, verdict


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A node, and the UIDs of the pods that would be evicted from it."""

    node: str
    victims: Set[str]


def helped(
    rooms: Mapping[str, Room], claims: Mapping[str, Claim], needed: Resources, candidates: Iterable[PreemptionCandidate]
) -> list[str]:
    """The nodes on which ``needed`` fits once their victims are gone, in the given order."""
    return [
        candidate.node
        for candidate in candidates
        if verdict(_without(rooms.get(candidate.node), claims, candidate), needed) is FITS
    ]


def _without(room: Room | None, claims: Mapping[str, Claim], candidate: PreemptionCandidate) -> Room | None:
    if room is None:
        return None
    leaving = Resources.sum(
        # kube-scheduler may know pods that have moved or ended meanwhile.
        claims[uid].reserved
        for uid in candidate.victims
        if uid in claims and claims[uid].node == candidate.node
    )
    reserved = room.reserved.minus_or_zero(leaving)
    is_withheld = room.free != room.total.minus_or_zero(room.reserved)  # beside a claim without a bound nothing is free
    return replace(room, reserved=reserved, free=room.free if is_withheld else room.total.minus_or_zero(reserved))
