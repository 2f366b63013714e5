"""Asking VMs for room back before anyone is denied or moved (B.17).

Rules that hold here:

- A node asks from ``NodeAccount.asks_from`` on, below its watermark: what idle VMs keep is the first thing to go.
- Those are asked that hold most beyond what they have shown to need, and for no more than the node lacks.
- Those that would be asked next ask again soon, also before the node lacks anything: there is no line to an agent.
- An offer is only a promise: nothing is reserved or freed by it. One that is not kept within ``KEPT_WITHIN``, or not
  repeated, counts no more: an agent that never gives, or is gone, holds up no move.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from protocol.units import ZERO, Bytes, Instant, MilliCpu, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.accounts.node_account import NodeAccount

KEPT_WITHIN: Final = Seconds(30.0)
"""An agent sends a request at least every 15 s; its guest shrinks within seconds of the answer."""

SOON: Final = Seconds(2.0)
"""How soon a VM that may be asked to give asks again."""


class AskedBack(NamedTuple):
    """The size that a VM should shrink to, and the time within which it should ask again; None: neither."""

    shrink_to: Resources | None = None
    again: Seconds | None = None


NOT_ASKED: Final = AskedBack()


def asked_back(node: NodeAccount, claim: Claim, permit: Resources, needs: Resources | None, now: Instant) -> AskedBack:
    """The wish to a VM with this ``permit``, which ``needs`` that much."""
    # By the permit: what is reserved for the VM falls only once a smaller one is stored.
    claim.offered = ZERO if needs is None or claim.is_migrating else permit.minus_or_zero(needs)
    lack = lacking(node)
    if not lack.any or _has_kept(claim, permit):
        claim.asked_since = None
    if not claim.offered.any or not (soon := _lacking_soon(node)).any:
        return NOT_ASKED
    # What it gave just now is reserved until the smaller permit is stored: it would be asked for the same again.
    before = _offered_before(node, claim, now) + _going(claim, permit)
    again = None if _is_in_vain(claim, now) or not _part_of(node, claim, soon, before).any else SOON
    part = _part_of(node, claim, lack, before)
    if not part.any:
        return AskedBack(None, again)
    if claim.asked_since is None:
        claim.asked_since, claim.asked_at = now, permit
    return AskedBack(permit - part, again)


def _has_kept(claim: Claim, permit: Resources) -> bool:
    """Return True if the VM has given of each resource that it offers still, since it was asked first.

    A need that rises and falls again is no gift: an offer that came and went would be promised for ever.
    """
    gave, offered = claim.asked_at.minus_or_zero(permit), claim.offered
    return (gave.cpu.value > 0 or not offered.cpu) and (gave.mem.value > 0 or not offered.mem) and gave.any


def _part_of(node: NodeAccount, claim: Claim, lack: Resources, before: Resources) -> Resources:
    """The part of ``lack`` that falls to ``claim`` after the offers ``before``, in whole steps of the unit."""
    left = lack.minus_or_zero(before)
    unit = None if node.policy is None else node.policy.compute_unit
    steps = left if unit is None else Resources(left.cpu.up_to(unit.cpu), left.mem.up_to(unit.mem))
    return steps.at_most(claim.offered)


def _going(claim: Claim, permit: Resources) -> Resources:
    """The part of its VM's reservation that goes once this ``permit`` is stored."""
    return ZERO if claim.vm is None else claim.vm.reserved.minus_or_zero(permit)


def _offered_before(node: NodeAccount, claim: Claim, now: Instant) -> Resources:
    """The sum of the offers that are taken before that of ``claim``."""
    turn, cpu, mem = _turn(claim, now), 0, 0
    # In plain integers: this runs for each request on a node that is nearly full.
    for other in node.claims.values():
        if other.offered is not ZERO and other is not claim and _turn(other, now) < turn:
            cpu, mem = cpu + other.offered.cpu.value, mem + other.offered.mem.value
    return Resources(MilliCpu(cpu), Bytes(mem))


def _turn(claim: Claim, now: Instant) -> tuple[bool, int, int, str]:
    # The largest offer first: it is smaller once it was kept, so that another VM gives next.
    # Offers that were not kept come last: an agent that never gives spares its neighbours nothing.
    return _is_in_vain(claim, now), -claim.offered.cpu.value, -claim.offered.mem.value, claim.pod.uid


def lacking(node: NodeAccount) -> Resources:
    """The room that the node should get back: up to ``asks_from``, and for what its VMs were denied."""
    return (node.reserved + node.unmet).minus_or_zero(node.asks_from + node.migrating)


def _lacking_soon(node: NodeAccount) -> Resources:
    """The same if the node's VMs suddenly needed more."""
    return (node.reserved + node.unmet).minus_or_zero(node.asks_soon_from + node.migrating)


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
