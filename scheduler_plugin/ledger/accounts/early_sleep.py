"""Early sleep: a node short of room asks idle VMs to sleep before ``sleep.after`` (B.18).

Rules:

- Ask a VM only while its agent reports that it needs no CPU: then it is idle, and its policy allows sleep.
- Do not ask for room that other VMs can free by shrinking, or that would only fill the wake reserve.
- Lowest weight first, then largest; ``MAX_CONCURRENT`` at a time, because each writes its memory to disk.
- Ask a VM once per ``ASK_INTERVAL``, whether it slept, refused or was woken soon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import SHRINK_TIMEOUT, Claim
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.waking import WakeNeed, room_for_waking
from scheduler_plugin.ledger.wake_reserve import NO_RESERVE

MAX_CONCURRENT: Final = 4
ASK_INTERVAL: Final = Seconds(900.0)


class Shortfall(NamedTuple):
    """Room that a node lacks: reserved ``over`` the watermark, and ``denied`` to VMs beyond the free room."""

    over: Resources
    denied: Resources = ZERO

    def after(self, freed: Resources, kept: Resources) -> Shortfall:
        """The shortfall after ``freed`` room, of which ``kept`` goes to the wake reserve."""
        return Shortfall(self.over.minus_or_zero(freed), self.denied.minus_or_zero(freed.minus_or_zero(kept)))


def update_asleep_size(claim: Claim, permit: Resources, needs: Resources | None, *, follows_requests: bool) -> None:
    """Update ``asleep_size`` after a request with this ``permit``; None if the VM cannot sleep now.

    ``needs`` is the minimum in the agent's last request. ``follows_requests``: pod requests follow permits.
    """
    # The room becomes free a little after the VM gives up its permit; the offer is valid until then, or until the agent
    # withdraws it.
    if not permit.any and (claim.sleeps or needs is None):
        return
    claim.asleep_size = None
    if needs is not None and not needs.cpu and claim.runs_vm and not claim.is_migrating:
        overhead, requests = claim.pod.overhead, claim.pod.requests
        claim.asleep_size = overhead if follows_requests and claim.secured is not None else overhead.at_least(requests)


def offered(claim: Claim, permit: Resources, needs: Resources | None) -> Resources:
    """The part of ``permit`` that the VM can free without sleep, by shrinking to ``needs``."""
    if needs is None or claim.is_migrating:
        return ZERO
    # A VM that may sleep is already at its minimum CPU.
    return permit.minus_or_zero(needs if claim.asleep_size is None else Resources(permit.cpu, needs.mem))


def should_sleep(node: NodeAccount, claim: Claim, shortfall: Resources, donors: Iterable[Claim], now: Instant) -> bool:
    """Return True if the VM whose agent is asking should sleep: the node still lacks room (at most ``shortfall``) after
    everything that ``donors`` are about to free.
    """
    offers = [donor.offered for donor in donors]
    # Sleeping VMs keep their room reserved until their smaller permit and requests are stored.
    offers += [_frees(other) for other in node.claims.values() if other.sleeps and _is_asked(other, now)]
    leaving = Resources.sum(offers) + node.migrating
    missing = Shortfall(
        node.reserved.minus_or_zero(node.room.watermark + leaving).at_most(shortfall),
        node.unmet.minus_or_zero(node.free_for_denied + leaving).at_most(shortfall),
    )
    return claim in sleep_candidates(node, missing, now, claim)


def request_sleep(claim: Claim, permit: Resources, now: Instant) -> None:
    """Record that the node asks the claim's VM to sleep, which frees all of its ``permit``."""
    if not _is_asked(claim, now):
        claim.asked_since = claim.sleep_asked_at = now
        claim.permit_when_asked = permit
    claim.offered = (permit + claim.pod.overhead).minus_or_zero(claim.asleep_size or ZERO)


def sleep_candidates(node: NodeAccount, shortfall: Shortfall, now: Instant, asking: Claim | None = None) -> list[Claim]:
    """Claims whose VMs should sleep to cover the node's ``shortfall``; empty if that would not help.

    Skips VMs that the node asked within ``ASK_INTERVAL``, except ``asking``.
    """
    # With a pod of unknown size nothing counts as free. VMs of a cordoned node will be drained.
    if node.unbounded or not node.room.is_open or not (shortfall.over.any or shortfall.denied.any):
        return []
    busy = [
        claim for claim in node.claims.values() if claim is not asking and _is_asked(claim, now) and not claim.sleeps
    ]
    eligible = [claim for claim in node.claims.values() if _may_order_sleep(claim, now, asking)]
    reserve, total = NO_RESERVE if node.policy is None else node.policy.wake_reserve, node.room.total
    needs = list(node.wake_needs.values())
    reserved, freed, left, chosen = room_for_waking(needs, reserve, total), ZERO, shortfall, list[Claim]()
    for claim in sorted(eligible, key=lambda claim: _order(claim, now)):
        room = _frees(claim)
        if len(busy) + len(chosen) < MAX_CONCURRENT and room.at_most(left.over.at_least(left.denied)).any:
            chosen.append(claim)
            needs.append(WakeNeed(room))
            freed = freed + room
            left = shortfall.after(freed, room_for_waking(needs, reserve, total).minus_or_zero(reserved))
    return chosen if left != shortfall else []


def _order(claim: Claim, now: Instant) -> tuple[bool, int, int, int, str]:
    room = _frees(claim)
    return not _is_asked(claim, now), claim.weight, -room.mem.value, -room.cpu.value, claim.pod.uid


def _may_order_sleep(claim: Claim, now: Instant, asking: Claim | None) -> bool:
    if claim.asleep_size is None or claim.sleeps or claim.is_away(now):
        return False
    return now - claim.sleep_asked_at >= ASK_INTERVAL or (claim is asking and _is_asked(claim, now))


def _is_asked(claim: Claim, now: Instant) -> bool:
    return claim.asleep_size is not None and now - claim.sleep_asked_at < SHRINK_TIMEOUT


def _frees(claim: Claim) -> Resources:
    return ZERO if claim.asleep_size is None else claim.reserved.minus_or_zero(claim.asleep_size)
