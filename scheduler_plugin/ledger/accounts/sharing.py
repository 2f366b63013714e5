"""Asks VMs of a node short of room to shrink, and computes fair shares of its free room (B.17).

Rules:

- A node asks above ``NodeAccount.shrink_threshold``, which is below its watermark, so idle VMs shrink before anything
  moves.
- The node asks the largest VMs for their weight first, down to a common level. It asks no VM for more than it offers,
  and all together for no more than the node lacks.
- While the cluster has lacked headroom for long, the node also asks the others to stay at their sizes: they grow only
  by need, so that no VM is denied room because of another's margin.
- The next VMs in that order poll more often, even before the node lacks anything: the scheduler cannot call agents.
- An offer reserves and frees nothing. It expires if the agent does not repeat it, or does not shrink within
  ``SHRINK_TIMEOUT``, so that an agent that never shrinks, or is gone, delays no move.
- Free room goes to denied VMs by fair shares of their total size, smallest for its weight first. No VM loses what it
  has. A VM's share goes to others after ``REQUEST_TIMEOUT`` without a request of its agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from protocol.messages import AgentRequest, ObjectName
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import POD_SHRINK_TIMEOUT, SHRINK_TIMEOUT, Claim, FreedRoom
from scheduler_plugin.ledger.accounts.early_sleep import (
    Shortfall,
    offered,
    request_sleep,
    should_sleep,
    sleep_candidates,
)
from scheduler_plugin.ledger.accounts.fair_shares import VmShare, fair_shares
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.facts import NodePolicy

MAX_NAMED: Final = 3
"""Maximum number of VMs to name as receivers of freed room: those that lacked the most at that time."""

SHOWN_FOR: Final = Seconds(3600.0)
"""Room freed earlier is not shown: it no longer explains anything, and the page shows only the time of day."""


def record_freed(node: NodeAccount, claim: Claim, permit: Resources, now: Instant) -> None:
    """Record what the VM has freed since the node asked; ``permit`` is its present permit."""
    if claim.asked_since is None or permit == claim.permit_when_asked:
        return
    amount, last = claim.permit_when_asked.minus_or_zero(permit), claim.last_freed
    # Requests repeat, and memory follows CPU: record both once.
    is_noted = last is not None and last.at > claim.asked_since and last.amount == amount
    if amount.any and not is_noted:
        claim.last_freed = FreedRoom(amount, now, tuple(_receivers(node, claim, amount)))


def _receivers(node: NodeAccount, donor: Claim, amount: Resources) -> Iterator[ObjectName]:
    """VMs that lack some of ``amount``, largest shortfall first."""
    denied = [claim for claim in node.claims.values() if claim is not donor and claim.unmet.at_most(amount).any]
    denied.sort(key=lambda claim: (-claim.unmet.cpu.value, -claim.unmet.mem.value, claim.pod.uid))
    for claim in denied[:MAX_NAMED]:
        yield claim.pod.vm or claim.pod.name


def recently_freed(claim: Claim, now: Instant) -> FreedRoom | None:
    """The room that the claim's VM last freed within ``SHOWN_FOR``, if any."""
    return None if claim.last_freed is None or now - claim.last_freed.at >= SHOWN_FOR else claim.last_freed


def promised_to(denied: Resources, node: NodeAccount, now: Instant) -> Resources:
    """The part of ``denied`` that VMs of the node are about to free on request."""
    if not denied.any:
        return ZERO
    return Resources.sum(donor.offered for donor in donors(node, now) if donor.asked_since is not None).at_most(denied)


FAST_POLL: Final = Seconds(2.0)
"""Polling interval of a VM that may be asked to shrink."""

PATIENCE: Final = Seconds(900.0)
"""After a denial of this length, VMs stay small for the denied one only up to its fair share of the node.

Longer than a migration takes: growing back earlier would prolong the denial.
"""


class ShrinkRequest(NamedTuple):
    """The size that a VM should shrink to (zero: sleep), and its polling interval; None: neither."""

    shrink_to: Resources | None = None
    ask_again: Seconds | None = None


NO_SHRINK_REQUEST: Final = ShrinkRequest()


def shrink_request(
    node: NodeAccount, claim: Claim, permit: Resources, needs: Resources | None, now: Instant
) -> ShrinkRequest:
    """The request to a VM with this ``permit`` that ``needs`` that much."""
    record_freed(node, claim, permit, now)
    # By the permit: the reservation falls only once a smaller permit is stored.
    claim.offered = offered(claim, permit, needs)
    may_sleep = needs is not None and claim.asleep_size is not None
    # Fast path of every request: no offer, and nothing asked for.
    if not claim.offered.any and claim.asked_since is None and not may_sleep:
        return NO_SHRINK_REQUEST
    wanted = _scarce_room(node, now)
    shortfall = wanted.minus_or_zero(node.shrink_threshold + node.migrating)
    if not shortfall.any or _has_delivered_offer(claim, permit, shortfall):
        claim.asked_since = None
    # The shortfall if the VMs suddenly needed more.
    shortfall_soon = wanted.minus_or_zero(node.fast_poll_threshold + node.migrating)
    if not (claim.offered.any or may_sleep) or not shortfall_soon.any:
        return NO_SHRINK_REQUEST
    if may_sleep and shortfall.any and should_sleep(node, claim, shortfall, donors(node, now), now):
        request_sleep(claim, permit, now)
        return ShrinkRequest(ZERO, FAST_POLL)
    part = _shrink_parts(node, shortfall, now).get(claim.pod.uid, ZERO)
    # A VM that is asked now would also be asked for a larger shortfall.
    is_next = part.any or claim.pod.uid in _next_donors(node, shortfall_soon, now)
    ask_again = FAST_POLL if is_next and not _is_unresponsive(claim, now) else None
    if not part.any:
        return ShrinkRequest(None, ask_again)
    if claim.asked_since is None:
        claim.asked_since, claim.permit_when_asked = now, permit
    return ShrinkRequest(permit - part, ask_again)


def _has_delivered_offer(claim: Claim, permit: Resources, shortfall: Resources) -> bool:
    """Return True if the VM has shrunk in each lacking resource that it still offers, since it was first asked.

    Without this check, an offer that changes with the need would count as promised forever.
    """
    freed, offered = claim.permit_when_asked.minus_or_zero(permit), claim.offered
    has_given_cpu = freed.cpu.value > 0 or not offered.cpu or not shortfall.cpu
    return has_given_cpu and (freed.mem.value > 0 or not offered.mem or not shortfall.mem) and freed.any


def _shrink_parts(node: NodeAccount, shortfall: Resources, now: Instant) -> dict[str, Resources]:
    """The part of ``shortfall`` that each VM should free, by pod, in whole units.

    VMs shrink to a common level by weight: the largest first, equals alike.
    """
    if node.policy is None or not shortfall.any:
        return {}
    offers = [claim for claim in node.claims.values() if claim.offered.any and claim.vm is not None]
    claimants = {claim.pod.uid: _without_offer(claim) for claim in offers}
    # Room just freed stays reserved until the smaller permits are stored; do not ask for it again.
    shortfall = shortfall.minus_or_zero(
        Resources.sum(claim.reserved.minus_or_zero(claimants[claim.pod.uid].maximum) for claim in offers)
    )
    parts: dict[str, Resources] = {}
    # An agent that never shrinks is asked last, and replaces no other.
    for are_unresponsive in (False, True):
        candidates = [claim for claim in offers if _is_unresponsive(claim, now) is are_unresponsive]
        if not candidates or not shortfall.any:
            continue
        unit = node.policy.compute_unit
        steps = Resources(shortfall.cpu.up_to(unit.cpu), shortfall.mem.up_to(unit.mem))
        chosen = [claimants[claim.pod.uid] for claim in candidates]
        total = Resources.sum(claimant.maximum for claimant in chosen)
        shares = fair_shares(total.minus_or_zero(steps), chosen, unit)
        for claim, claimant, share in zip(candidates, chosen, shares, strict=True):
            parts[claim.pod.uid] = claimant.maximum.minus_or_zero(share).at_most(claim.offered)
        shortfall = shortfall.minus_or_zero(Resources.sum(claim.offered for claim in candidates))
    return parts


def _without_offer(claim: Claim) -> VmShare:
    """The claim's size with its VM's last permit, and without everything that it offers."""
    permit = None if claim.vm is None else claim.vm.permit
    size = claim.reserved if permit is None else claim.reserved.at_most(permit + claim.pod.overhead)
    return VmShare(size.minus_or_zero(claim.offered), size, claim.weight, (0.0, claim.pod.uid))


def _next_donors(node: NodeAccount, shortfall: Resources, now: Instant) -> frozenset[str]:
    """Pods of the VMs that would be asked for ``shortfall``; cached for a moment, because all of them poll often."""
    if node.next_donors is None or now - node.next_donors[0] >= FAST_POLL:
        parts = _shrink_parts(node, shortfall, now)
        sleepers = (claim.pod.uid for claim in sleep_candidates(node, Shortfall(shortfall), now))
        node.next_donors = (now, frozenset([*sleepers, *(uid for uid, part in parts.items() if part.any)]))
    return node.next_donors[1]


def lacking(node: NodeAccount, now: Instant) -> Resources:
    """Room to free on the node: what denied VMs lack, and what is reserved above ``shrink_threshold``."""
    return _scarce_room(node, now).minus_or_zero(node.shrink_threshold + node.migrating)


def should_stay(node: NodeAccount, permit: Resources, request: AgentRequest, now: Instant) -> bool:
    """Return True if a VM of the node that gets ``permit`` for ``request`` should not grow beyond its recent need."""
    # A size of zero would ask for sleep. The original's agents send no sequence.
    return permit.cpu.value > 0 and request.sequence is not None and lacking(node, now).any


def _scarce_room(node: NodeAccount, now: Instant) -> Resources:
    """Reserved and denied room on the node for which its VMs should stay small.

    A VM that has been denied for longer than ``PATIENCE`` counts only up to its fair share.
    """
    wanted = node.reserved + node.unmet
    if not node.unmet.any or node.policy is None:
        return wanted
    claims = [claim for claim in node.claims.values() if claim.vm is not None and not claim.is_migrating]
    long_denied = [claim for claim in claims if claim.denied_since is not None and now - claim.denied_since >= PATIENCE]
    if not long_denied:
        return wanted
    # All VMs of a short node may need it, and it takes long for many claims.
    sums, cached = (node.reserved, node.unmet), node.scarce_room
    if cached is None or cached[0] != sums or now - cached[1] >= FAST_POLL:
        cached = node.scarce_room = sums, now, _scarce_room_by_shares(node, node.policy, claims, long_denied)
    return cached[2]


def _scarce_room_by_shares(
    node: NodeAccount, policy: NodePolicy, claims: list[Claim], long_denied: list[Claim]
) -> Resources:
    wanted = node.reserved + node.unmet
    claimants = [VmShare(ZERO, claim.reserved + claim.unmet, claim.weight, (0.0, claim.pod.uid)) for claim in claims]
    others = node.reserved.minus_or_zero(Resources.sum(claim.reserved for claim in claims))
    shares = fair_shares(node.shrink_threshold.minus_or_zero(others), claimants, policy.compute_unit)
    of_each = list(zip(claims, shares, strict=True))
    beyond = Resources.sum(claim.reserved + claim.unmet - share for claim, share in of_each if claim in long_denied)
    # A VM above its share must not hide what others lack of theirs.
    due = Resources.sum(share.minus_or_zero(claim.reserved).at_most(claim.unmet) for claim, share in of_each)
    due = due.minus_or_zero(node.free_for_denied)
    return (wanted - beyond).at_least(node.shrink_threshold + node.migrating + due) if due.any else wanted - beyond


def promised(node: NodeAccount, now: Instant) -> Resources:
    """Room that the node's VMs are about to free on request."""
    offered = Resources.sum(claim.offered for claim in donors(node, now))
    # Fast path: ``lacking`` walks all claims.
    return offered.at_most(lacking(node, now)) if offered.any else offered


def donors(node: NodeAccount, now: Instant) -> list[Claim]:
    """Claims whose VMs are about to free room: they offer some, and have not ignored a request to shrink."""
    return [claim for claim in node.claims.values() if claim.offered.any and not _is_unresponsive(claim, now)]


def _is_unresponsive(claim: Claim, now: Instant) -> bool:
    """Return True if the VM is leaving, its agent is silent, or it has not shrunk in time after a request."""
    since, timeout = claim.asked_since, SHRINK_TIMEOUT if claim.runs_vm else POD_SHRINK_TIMEOUT
    return claim.is_away(now) or (since is not None and now - since >= timeout)


REQUEST_TIMEOUT: Final = Seconds(15.0)
"""A denied agent of ours repeats its request within 8 s, any agent within 15 s."""


def room_due_to_others(node: NodeAccount, claim: Claim, wanted: Resources, now: Instant) -> Resources:
    """The free room due to other denied VMs if the VM of ``claim`` wants ``wanted``.

    Does not include waking VMs: the room that they lack is not free.
    """
    # Fast path of every growth: no other VM is denied.
    if node.policy is None or node.unmet == claim.unmet:
        return ZERO
    rivals = [rival for rival in rivals_of(claim, node, now) if not rival.sleeps]
    if not rivals:
        return ZERO
    claimants = [_claimant(claim, (wanted + claim.pod.overhead).minus_or_zero(claim.reserved), now)]
    claimants += [_claimant(rival, rival.unmet, now) for rival in rivals]
    free = node.room.free
    share = fair_shares(
        free + Resources.sum(claimant.minimum for claimant in claimants), claimants, node.policy.compute_unit
    )[0]
    return free.minus_or_zero(share - claim.reserved)


def _claimant(claim: Claim, wanted: Resources, now: Instant) -> VmShare:
    # Among equals, longest denial first.
    since = now if claim.denied_since is None else claim.denied_since
    return VmShare(claim.reserved, claim.reserved + wanted, claim.weight, (since, claim.pod.uid))


def rivals_of(claim: Claim, node: NodeAccount, now: Instant) -> Iterator[Claim]:
    """Other claims on the node whose VMs are denied and would take room there."""
    return (other for other in node.claims.values() if other is not claim and _competes(other, now))


def _competes(claim: Claim, now: Instant) -> bool:
    """Return True if the claim's VM is denied, could take room here, and asked recently."""
    if claim.vm is None or not claim.unmet.any or now - claim.vm.last_message_at > REQUEST_TIMEOUT:
        return False
    # Room would stay idle if the API server refused the pod's requests or the permit.
    if claim.unsecured.any or claim.vm.refusal:
        return False
    # A leaving VM gets room elsewhere. A VM with two pods may be limited by the other node.
    return not claim.is_migrating and claim.vm.hosts == [claim]
