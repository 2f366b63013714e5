"""Asking VMs for room back before anyone is denied or moved (B.17).

Rules that hold here:

- A node asks from ``NodeAccount.asks_from`` on, below its watermark: what idle VMs keep is the first thing to go.
- Those are asked that hold most beyond what they have shown to need, and for no more than the node lacks.
- An offer is only a promise: nothing is reserved or freed by it. One that is not kept within ``KEPT_WITHIN``, or not
  repeated, counts no more: an agent that never gives, or is gone, holds up no move.
"""

from __future__ import annotations

from typing import Final

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.accounts.gifts import note_gift
from scheduler_plugin.ledger.accounts.node_account import NodeAccount

KEPT_WITHIN: Final = Seconds(30.0)
"""An agent sends a request at least every 15 s; its guest shrinks within seconds of the answer."""


def asked_back(
    node: NodeAccount, claim: Claim, permit: Resources, needs: Resources | None, now: Instant
) -> Resources | None:
    """The size that a VM with this ``permit`` should shrink to, which ``needs`` that much; None if it need not."""
    note_gift(node, claim, permit, now)
    # By the permit: what is reserved for the VM falls only once a smaller one is stored.
    offered = ZERO if needs is None or claim.is_migrating else permit.minus_or_zero(needs)
    claim.offered, lack = offered, lacking(node)
    if not lack.any or _has_kept(claim, permit):
        claim.asked_since = None
    part = _part_of(node, claim, lack, now) if lack.any and offered.any else ZERO
    if not part.any:
        return None
    if claim.asked_since is None:
        claim.asked_since, claim.asked_at = now, permit
    return permit - part


def _has_kept(claim: Claim, permit: Resources) -> bool:
    """Return True if the VM has given of each resource that it offers still, since it was asked first.

    A need that rises and falls again is no gift: an offer that came and went would be promised for ever.
    """
    gave, offered = claim.asked_at.minus_or_zero(permit), claim.offered
    return (gave.cpu.value > 0 or not offered.cpu) and (gave.mem.value > 0 or not offered.mem) and gave.any


def _part_of(node: NodeAccount, claim: Claim, lack: Resources, now: Instant) -> Resources:
    """The part of what the node lacks that falls to ``claim``, of each resource in whole steps of the unit."""
    offers = [other for other in node.claims.values() if other.offered.any]
    # The largest offer first: it is smaller once it was kept, so that another VM gives next.
    # Offers that were not kept come last: an agent that never gives spares its neighbours nothing.
    offers.sort(key=lambda of: (_is_in_vain(of, now), -of.offered.cpu.value, -of.offered.mem.value, of.pod.uid))
    left = lack.minus_or_zero(Resources.sum(other.offered for other in offers[: offers.index(claim)]))
    unit = None if node.policy is None else node.policy.compute_unit
    steps = left if unit is None else Resources(left.cpu.up_to(unit.cpu), left.mem.up_to(unit.mem))
    return steps.at_most(claim.offered)


def lacking(node: NodeAccount) -> Resources:
    """The room that the node should get back: up to ``asks_from``, and for what its VMs were denied."""
    return (node.reserved + node.unmet).minus_or_zero(node.asks_from + node.migrating)


def promised(node: NodeAccount, now: Instant) -> Resources:
    """The room that the node's VMs are about to give back."""
    return Resources.sum(claim.offered for claim in givers(node, now))


def givers(node: NodeAccount, now: Instant) -> list[Claim]:
    """The claims whose VMs are about to give back: those that offer room, but not in vain so far."""
    return [claim for claim in node.claims.values() if claim.offered.any and not _is_in_vain(claim, now)]


def _is_in_vain(claim: Claim, now: Instant) -> bool:
    """Return True if the VM was asked long ago, or leaves, or its agent has not been heard since."""
    since, is_leaving = claim.asked_since, claim.is_migrating or claim.left is not None
    is_silent = claim.vm is None or now - claim.vm.heard_at >= KEPT_WITHIN
    return is_leaving or is_silent or (since is not None and now - since >= KEPT_WITHIN)
