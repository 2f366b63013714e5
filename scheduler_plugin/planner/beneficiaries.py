"""VMs and pods that wait for room, and texts about the moves that make it (B.14). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.accounts.sharing import donors
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.placement.verdict import Room
from scheduler_plugin.texts import explanations
from scheduler_plugin.texts.amounts import amounts_text


def waiting_for_room(ledger: Ledger, node: str) -> list[Claim]:
    """Claims on the node whose VM is denied, or whose opted-in pod waits for a resize; oldest first.

    VMs that are leaving are not included.
    """
    account = ledger.nodes.get(node)
    claims = () if account is None else account.claims.values()
    # A leaving VM gets room elsewhere.
    return [claim for claim in claims if (claim.unmet.any or claim.deferred.opted_in.any) and not claim.is_migrating]


def room_being_made(ledger: Ledger, claim: Claim, now: Instant) -> Iterator[str]:
    """Texts about the VMs that shrink for a waiting claim or are leaving its node."""
    if claim in waiting_for_room(ledger, claim.node):
        for donor in donors(ledger.nodes[claim.node], now):
            if donor.asked_since is not None and donor is not claim:
                yield explanations.GIVES_BACK.format(vm=donor.pod.vm, room=amounts_text(donor.offered))
        for migration in ledger.migrations.values():
            if migration.is_active and migration.source == claim.node:
                yield move_text(migration)


def no_room_to_grow(ledger: Ledger, claims: Iterable[Claim], share: float, obstacle: Callable[[str], str]) -> str:
    """Text about the one of ``claims`` that lacks the most room to grow to its VM's bound; empty if none does.

    ``share`` of the growth counts. ``obstacle`` returns why no VM leaves a node for it.
    """
    lacks = [(_lacking_to_grow(ledger, claim, share), claim) for claim in claims]
    lacking, claim = max(lacks, key=lambda lack: (lack[0].cpu, lack[0].mem), default=(ZERO, None))
    if claim is None or not lacking.any:
        return ""
    active = (migration for migration in ledger.migrations.values() if migration.is_active)
    leaving = next((migration for migration in active if migration.source == claim.node), None)
    why = (
        obstacle(claim.node)
        if leaving is None
        else explanations.moves(leaving.vm, leaving.source, leaving.destination, "")
    )
    return explanations.NO_ROOM_TO_GROW.format(vm=claim.pod.vm, node=claim.node, lacking=amounts_text(lacking), why=why)


def _lacking_to_grow(ledger: Ledger, claim: Claim, share: float) -> Resources:
    account = ledger.nodes[claim.node]
    # VMs leave a cordoned node anyway.
    if not claim.growth.any or not account.room.is_open:
        return ZERO
    return (account.reserved + claim.growth.scaled(share)).minus_or_zero(account.room.total)


def move_text(migration: Migration) -> str:
    """Text of a move with its reason."""
    return explanations.moves(migration.vm, migration.source, migration.destination, migration.reason)


def nearest_room_text(rooms: Iterable[Room], need: Resources) -> str:
    """Text about the node that is closest to having room for ``need``; empty if one has room."""
    candidates = [room for room in rooms if room.is_open]
    if any(need.within(room.free) for room in candidates):
        return ""
    if not candidates:
        return explanations.NO_OTHER_NODE
    # Ties go by name, so that the text is stable.
    nearest = min(candidates, key=lambda room: (_lacking_share(room, need), room.node))
    lacking = amounts_text(need.minus_or_zero(nearest.free))
    return explanations.NEAREST.format(need=amounts_text(need), node=nearest.node, lacking=lacking)


def _lacking_share(room: Room, need: Resources) -> float:
    """The larger lack of CPU or memory, as a fraction of ``need``."""
    lacking = need.minus_or_zero(room.free)
    return max(lacking.cpu.value / max(1, need.cpu.value), lacking.mem.value / max(1, need.mem.value))
