"""The record of room that VMs gave back, and of what the denied wait for: who gave what to whom (B.17).

Nothing is decided by it. Only the last gift of a claim is kept, so that it never grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import Claim, Gift
from scheduler_plugin.ledger.accounts.node_account import NodeAccount

MOST_NAMED: Final = 3
"""A gift names this many VMs at most: those that lacked the most when the room came free."""

SHOWN_FOR: Final = Seconds(3600.0)
"""Older gifts are not shown: they explain nothing any more, and a time of day alone would be ambiguous."""


def note_gift(node: NodeAccount, claim: Claim, permit: Resources, now: Instant) -> None:
    """Note what the VM, which has this ``permit`` now, has given back since it was asked."""
    if claim.asked_since is None or permit == claim.asked_at:
        return
    amount, last = claim.asked_at.minus_or_zero(permit), claim.gift
    # The agent repeats itself; a gift of CPU that memory follows is one gift.
    is_noted = last is not None and last.at > claim.asked_since and last.amount == amount
    if amount.any and not is_noted:
        claim.gift = Gift(amount, now, tuple(_receivers(node, claim, amount)))


def _receivers(node: NodeAccount, giver: Claim, amount: Resources) -> Iterator[ObjectName]:
    """The VMs that lack something of ``amount``, those that lack the most first."""
    denied = [claim for claim in node.claims.values() if claim is not giver and claim.unmet.at_most(amount).any]
    denied.sort(key=lambda claim: (-claim.unmet.cpu.value, -claim.unmet.mem.value, claim.pod.uid))
    for claim in denied[:MOST_NAMED]:
        yield claim.pod.vm or claim.pod.name


def last_gift(claim: Claim, now: Instant) -> Gift | None:
    """The last gift of the claim's VM; None if there is none of the last hour."""
    return None if claim.gift is None or now - claim.gift.at >= SHOWN_FOR else claim.gift


def promised_by(givers: list[Claim], denied: Resources) -> Resources:
    """The part of what VMs were ``denied`` that their neighbours were asked for and are about to give."""
    return Resources.sum(giver.offered for giver in givers if giver.asked_since is not None).at_most(denied)
