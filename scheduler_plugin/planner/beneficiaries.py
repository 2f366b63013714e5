"""VMs and pods that room is being made for, and the moves that make it (B.14). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_plugin.ledger import LedgerViews, Migration
from scheduler_plugin.ledger.accounts.claims import Claim


def waiting_for_room(ledger: LedgerViews, node: str) -> list[Claim]:
    """The claims on the node whose VM is denied what it asks for, or whose pod waits for its resize and asks for room.

    Those that leave are not among them. The oldest claim is the first.
    """
    book = ledger.nodes.get(node)
    claims = () if book is None else book.claims.values()
    # A VM on its way out gets its room elsewhere.
    return [claim for claim in claims if (claim.unmet.any or claim.waits.asked.any) and not claim.is_migrating]


def room_being_made(ledger: LedgerViews, claim: Claim) -> Iterator[str]:
    """VMs that leave the node of a waiting claim, as sentences; none if no move is under way."""
    if claim in waiting_for_room(ledger, claim.node):
        for migration in ledger.migrations.values():
            if migration.is_active and migration.source == claim.node:
                yield sentence(migration)


def sentence(migration: Migration) -> str:
    """Sentence on who moves where, and why."""
    why = f": {migration.reason}" if migration.reason else ""
    return f"VM {migration.vm} moves from {migration.source} to {migration.goal or 'a node still to be chosen'}{why}"
