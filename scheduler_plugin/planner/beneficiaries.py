"""VMs and pods that wait for room, the moves that make it (B.14), and the node that comes closest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.accounts.sharing import givers
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.placement.verdict import Room
from scheduler_plugin.texts import explanations
from scheduler_plugin.texts.amounts import some


def waiting_for_room(ledger: Ledger, node: str) -> list[Claim]:
    """Claims on the node whose VM is denied, or whose pod waits for a resize with the opt-in label; oldest first.

    Does not include VMs that leave.
    """
    book = ledger.nodes.get(node)
    claims = () if book is None else book.claims.values()
    # A leaving VM gets room elsewhere.
    return [claim for claim in claims if (claim.unmet.any or claim.waits.opted_in.any) and not claim.is_migrating]


def room_being_made(ledger: Ledger, claim: Claim, now: Instant) -> Iterator[str]:
    """Sentences on VMs that shrink for a waiting claim, and on VMs that leave its node."""
    if claim in waiting_for_room(ledger, claim.node):
        for giver in givers(ledger.nodes[claim.node], now):
            if giver.asked_since is not None and giver is not claim:
                yield explanations.GIVES_BACK.format(vm=giver.pod.vm, room=some(giver.offered))
        for migration in ledger.migrations.values():
            if migration.is_active and migration.source == claim.node:
                yield sentence(migration)


def sentence(migration: Migration) -> str:
    """Sentence on who moves where, and why."""
    return explanations.moves(migration.vm, migration.source, migration.goal, migration.reason)


def no_room(rooms: Iterable[Room], need: Resources) -> str:
    """Sentence on the nearest of ``rooms``, for people; empty if one of them has room for ``need``."""
    candidates = [room for room in rooms if room.is_open]
    if any(need.within(room.free) for room in candidates):
        return ""
    if not candidates:
        return explanations.NO_OTHER_NODE
    # Ties go by name, so that the sentence is stable.
    nearest = min(candidates, key=lambda room: (_lacking_share(room, need), room.node))
    lacking = some(need.minus_or_zero(nearest.free))
    return explanations.NEAREST.format(need=some(need), node=nearest.node, lacking=lacking)


def _lacking_share(room: Room, need: Resources) -> float:
    """The larger lack of CPU or memory, as a fraction of ``need``."""
    lacking = need.minus_or_zero(room.free)
    return max(lacking.cpu.value / max(1, need.cpu.value), lacking.mem.value / max(1, need.mem.value))
