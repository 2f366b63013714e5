"""Free room of a node that denies VMs: each of them gets its fair share, whoever asks first (B.17).

Rules that hold here:

- Shares level what VMs have in all for their weight, so the smallest is served first; what they have already stays.
- Room is kept for a denied VM only while its agent keeps asking: after ``TURN`` without a request it goes to others.
"""

from __future__ import annotations

from typing import Final

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.accounts.fair_shares import Span, fair_shares
from scheduler_plugin.ledger.accounts.node_account import NodeAccount

TURN: Final = Seconds(15.0)
"""A denied agent of ours asks again within 8 s, any agent within 15 s."""


def kept_for_others(node: NodeAccount, claim: Claim, wanted: Resources, now: Instant) -> Resources:
    """The part of the node's free room that is due to other denied VMs, if the VM of ``claim`` wants ``wanted``."""
    # The usual case, in the path of each growth: no other VM is denied.
    if node.policy is None or node.unmet == claim.unmet:
        return ZERO
    rivals = [other for other in node.claims.values() if other is not claim and _has_turn(other, now)]
    if not rivals:
        return ZERO
    spans = [_span(claim, (wanted + claim.pod.around).minus_or_zero(claim.reserved), now)]
    spans += [_span(rival, rival.unmet, now) for rival in rivals]
    free = node.room.free
    share = fair_shares(free + Resources.sum(span.least for span in spans), spans, node.policy.compute_unit)[0]
    return free.minus_or_zero(share - claim.reserved)


def _span(claim: Claim, wish: Resources, now: Instant) -> Span:
    # Of equals, the one that has been denied longest goes first.
    since = now if claim.denied_since is None else claim.denied_since
    return Span(claim.reserved, claim.reserved + wish, claim.weight, (since, claim.pod.uid))


def _has_turn(claim: Claim, now: Instant) -> bool:
    """Return True if the claim's VM is denied, could take room here, and asked a short time ago."""
    if claim.vm is None or not claim.unmet.any or now - claim.vm.heard_at > TURN:
        return False
    # Room would lie idle beside a VM whose pod's requests or whose permit the API refuses.
    if claim.unsecured.any or claim.vm.refusal:
        return False
    # One that leaves gets its room elsewhere; one with two pods may be held up by the node of the other.
    return not claim.is_migrating and claim.vm.hosts == [claim]
