"""A node that is short of room: asking VMs for what they do not need, and fair shares of what is free (B.17).

Rules that hold here:

- A node asks from ``NodeAccount.asks_from`` on, below its watermark: what idle VMs keep is the first thing to go.
- Those that have most for their weight are asked first, down to one level and never below what they have shown to
  need, and in all for no more than the node lacks.
- Those that would be asked next ask again soon, also before the node lacks anything: there is no line to an agent.
- An offer is only a promise: nothing is reserved or freed by it. One that is not kept within ``KEPT_WITHIN``, or not
  repeated, counts no more: an agent that never gives, or is gone, holds up no move.
- Free room goes to denied VMs by fair shares of what they have in all, the smallest for its weight first; what they
  have already stays. It is kept for one only while its agent asks: after ``TURN`` without a request it goes to others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Final, NamedTuple

from protocol.messages import ObjectName
from protocol.units import ZERO, Bytes, ComputeUnit, Instant, MilliCpu, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import KEPT_WITHIN, KEPT_WITHIN_BY_POD, Claim, Gift
from scheduler_plugin.ledger.accounts.early_sleep import (
    Shortfall,
    offered,
    request_sleep,
    should_sleep,
    sleep_candidates,
)
from scheduler_plugin.ledger.accounts.node_account import NodeAccount


@dataclass(frozen=True, slots=True)
class Span:
    """Bounds of one VM's share. ``weight`` (> 0) is how much of the room it is worth beside others.

    ``rank`` is unique: of equals, the lowest gets the step that cannot be divided.
    """

    least: Resources
    most: Resources
    weight: int
    rank: tuple[float, str]


def fair_shares(room: Resources, spans: Sequence[Span], unit: ComputeUnit) -> list[Resources]:
    """The share of each span: together ``room`` of each resource, or as much as their bounds allow.

    Shares rise from ``least`` in whole units, except for the last step. Nobody gets less than ``least``, even if
    there is less room than that.

    >>> spans = [Span(Resources.parse(0, 0), Resources.parse(most, 0), 1, (0.0, str(most))) for most in (1, 5, 9)]
    >>> [share.cpu.value for share in fair_shares(Resources.parse(7, 0), spans, ComputeUnit.parse(1, "1Gi"))]
    [1000, 3000, 3000]
    """
    cpu = _shares(
        room.cpu.value, [(of.least.cpu.value, of.most.cpu.value, of.weight, of.rank) for of in spans], unit.cpu.value
    )
    mem = _shares(
        room.mem.value, [(of.least.mem.value, of.most.mem.value, of.weight, of.rank) for of in spans], unit.mem.value
    )
    return [Resources(MilliCpu(cpus), Bytes(size)) for cpus, size in zip(cpu, mem, strict=True)]


_Bounds = tuple[int, int, int, tuple[float, str]]


def _shares(room: int, bounds: list[_Bounds], step: int) -> list[int]:
    if room >= sum(most for _, most, _, _ in bounds):
        return [most for _, most, _, _ in bounds]
    shares = [least for least, _, _, _ in bounds]
    if room <= sum(shares):
        return shares
    level, scale = _level(room, bounds)
    for index, (least, most, weight, _) in enumerate(bounds):
        rise = min(most, level * weight // scale) - least
        # A VM cannot use less than a step.
        shares[index] += max(0, rise - rise % step)
    left = room - sum(shares)
    # Each lacks less than a step of its exact share, and these come before those that are above the level anyway.
    for index in sorted(range(len(bounds)), key=lambda of: (shares[of] / bounds[of][2], bounds[of][3])):
        more = min(step, bounds[index][1] - shares[index], left)
        shares[index], left = shares[index] + more, left - more
    return shares


def _level(room: int, bounds: list[_Bounds]) -> tuple[int, int]:
    """The level up to which shares for a weight of one rise until they fill ``room``, as a fraction.

    ``room`` must lie between the sums of the bounds.
    """
    # With a common multiple of all weights the edges are whole numbers, so that rounding never makes equals unequal.
    scale = lcm(*{weight for _, _, weight, _ in bounds})
    edges = [(least * scale // weight, weight) for least, _, weight, _ in bounds]
    edges += [(most * scale // weight, -weight) for _, most, weight, _ in bounds]
    ordered = iter(sorted(edges))
    (edge, change), level, slope = next(ordered), 0, 0
    missing = (room - sum(least for least, _, _, _ in bounds)) * scale
    while (filled := slope * (edge - level)) < missing:
        missing, level, slope = missing - filled, edge, slope + change
        edge, change = next(ordered)
    return level * slope + missing, slope * scale


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


def promised_to(denied: Resources, node: NodeAccount, now: Instant) -> Resources:
    """The part of what VMs of the node were ``denied`` that their neighbours were asked for and are about to give."""
    if not denied.any:
        return ZERO
    return Resources.sum(giver.offered for giver in givers(node, now) if giver.asked_since is not None).at_most(denied)


SOON: Final = Seconds(2.0)
"""How soon a VM that may be asked to give asks again."""

PATIENCE: Final = Seconds(900.0)
"""After a denial of this length neighbours stay lean for a VM only up to its fair share of the node.

Longer than it takes to move a VM away: neighbours that take room back before that make the denial longer.
"""


class AskedBack(NamedTuple):
    """The size that a VM should shrink to (zero: it should sleep), and the time within which it should ask again; None:
    neither.
    """

    shrink_to: Resources | None = None
    again: Seconds | None = None


NOT_ASKED: Final = AskedBack()


def asked_back(node: NodeAccount, claim: Claim, permit: Resources, needs: Resources | None, now: Instant) -> AskedBack:
    """The wish to a VM with this ``permit``, which ``needs`` that much."""
    note_gift(node, claim, permit, now)
    # By the permit: what is reserved for the VM falls only once a smaller one is stored.
    claim.offered = offered(claim, permit, needs)
    may_sleep = needs is not None and claim.asleep_size is not None
    # The usual case, in the path of each request: the VM offers nothing, and was asked for nothing.
    if not claim.offered.any and claim.asked_since is None and not may_sleep:
        return NOT_ASKED
    wanted = _wanted(node, now)
    lack = wanted.minus_or_zero(node.asks_from + node.migrating)
    if not lack.any or _has_kept(claim, permit, lack):
        claim.asked_since = None
    # What the node would lack if its VMs suddenly needed more.
    lack_soon = wanted.minus_or_zero(node.asks_soon_from + node.migrating)
    if not (claim.offered.any or may_sleep) or not lack_soon.any:
        return NOT_ASKED
    if may_sleep and lack.any and should_sleep(node, claim, lack, givers(node, now), now):
        request_sleep(claim, permit, now)
        return AskedBack(ZERO, SOON)
    part = _parts(node, lack, now).get(claim.pod.uid, ZERO)
    # Whoever gives now would also give for a larger lack.
    is_next = part.any or claim.pod.uid in _next_givers(node, lack_soon, now)
    again = SOON if is_next and not _is_in_vain(claim, now) else None
    if not part.any:
        return AskedBack(None, again)
    if claim.asked_since is None:
        claim.asked_since, claim.asked_at = now, permit
    return AskedBack(permit - part, again)


def _has_kept(claim: Claim, permit: Resources, lack: Resources) -> bool:
    """Return True if the VM has given of each lacking resource that it offers still, since it was asked first.

    A need that rises and falls again is no gift: an offer that came and went would be promised for ever.
    """
    gave, offered = claim.asked_at.minus_or_zero(permit), claim.offered
    has_given_cpu = gave.cpu.value > 0 or not offered.cpu or not lack.cpu
    return has_given_cpu and (gave.mem.value > 0 or not offered.mem or not lack.mem) and gave.any


def _parts(node: NodeAccount, lack: Resources, now: Instant) -> dict[str, Resources]:
    """The parts of ``lack`` that fall to the node's VMs, by pod, of each resource in whole steps of the unit.

    VMs give down to one level by weight, so that the tallest gives first, and equals give alike.
    """
    if node.policy is None or not lack.any:
        return {}
    offers = [claim for claim in node.claims.values() if claim.offered.any and claim.vm is not None]
    spans = {claim.pod.uid: _without_offer(claim) for claim in offers}
    # What they gave just now is reserved until the smaller permits are stored: it would be asked for again.
    lack = lack.minus_or_zero(
        Resources.sum(claim.reserved.minus_or_zero(spans[claim.pod.uid].most) for claim in offers)
    )
    parts: dict[str, Resources] = {}
    # An agent that never gives is asked last, and spares its neighbours nothing.
    for are_in_vain in (False, True):
        turn = [claim for claim in offers if _is_in_vain(claim, now) is are_in_vain]
        if not turn or not lack.any:
            continue
        unit = node.policy.compute_unit
        steps = Resources(lack.cpu.up_to(unit.cpu), lack.mem.up_to(unit.mem))
        of_turn = [spans[claim.pod.uid] for claim in turn]
        left = fair_shares(Resources.sum(span.most for span in of_turn).minus_or_zero(steps), of_turn, unit)
        for claim, span, share in zip(turn, of_turn, left, strict=True):
            parts[claim.pod.uid] = span.most.minus_or_zero(share).at_most(claim.offered)
        lack = lack.minus_or_zero(Resources.sum(claim.offered for claim in turn))
    return parts


def _without_offer(claim: Claim) -> Span:
    """The claim's size once its VM's last permit is stored, and without all that it offers."""
    permit = None if claim.vm is None else claim.vm.permit
    size = claim.reserved if permit is None else claim.reserved.at_most(permit + claim.pod.around)
    return Span(size.minus_or_zero(claim.offered), size, claim.weight, (0.0, claim.pod.uid))


def _next_givers(node: NodeAccount, lack: Resources, now: Instant) -> frozenset[str]:
    """The pods of VMs that would be asked for ``lack``; remembered for a moment, because all of them ask often."""
    if node.next_givers is None or now - node.next_givers[0] >= SOON:
        parts = _parts(node, lack, now)
        sleepers = (claim.pod.uid for claim in sleep_candidates(node, Shortfall(lack), now))
        node.next_givers = (now, frozenset([*sleepers, *(uid for uid, part in parts.items() if part.any)]))
    return node.next_givers[1]


def lacking(node: NodeAccount, now: Instant) -> Resources:
    """The room that the node should get back: up to ``asks_from``, and for what its VMs were denied."""
    return _wanted(node, now).minus_or_zero(node.asks_from + node.migrating)


def _wanted(node: NodeAccount, now: Instant) -> Resources:
    """The room that is reserved on the node or was denied there, as far as neighbours stay lean for it.

    They stay lean for a VM that has been denied for long only up to its fair share.
    """
    wanted = node.reserved + node.unmet
    if not node.unmet.any or node.policy is None:
        return wanted
    claims = [claim for claim in node.claims.values() if claim.vm is not None and not claim.is_migrating]
    greedy = [claim for claim in claims if claim.denied_since is not None and now - claim.denied_since >= PATIENCE]
    if not greedy:
        return wanted
    spans = [Span(ZERO, claim.reserved + claim.unmet, claim.weight, (0.0, claim.pod.uid)) for claim in claims]
    others = node.reserved.minus_or_zero(Resources.sum(claim.reserved for claim in claims))
    shares = fair_shares(node.asks_from.minus_or_zero(others), spans, node.policy.compute_unit)
    of_each = list(zip(claims, shares, strict=True))
    beyond = Resources.sum(claim.reserved + claim.unmet - share for claim, share in of_each if claim in greedy)
    # What a greedy VM has already must not hide what its neighbours lack of their own shares.
    due = Resources.sum(share.minus_or_zero(claim.reserved).at_most(claim.unmet) for claim, share in of_each)
    due = due.minus_or_zero(node.open_to_denied)
    return (wanted - beyond).at_least(node.asks_from + node.migrating + due) if due.any else wanted - beyond


def promised(node: NodeAccount, now: Instant) -> Resources:
    """The room that the node's VMs are about to give back, as far as they are asked for it."""
    offered = Resources.sum(claim.offered for claim in givers(node, now))
    # The usual case after a long denial, in which the lack takes all claims to find.
    return offered.at_most(lacking(node, now)) if offered.any else offered


def givers(node: NodeAccount, now: Instant) -> list[Claim]:
    """The claims whose VMs are about to give back: those that offer room, but not in vain so far."""
    return [claim for claim in node.claims.values() if claim.offered.any and not _is_in_vain(claim, now)]


def _is_in_vain(claim: Claim, now: Instant) -> bool:
    """Return True if the VM was asked long ago, or leaves, or its agent has not been heard since."""
    since, longest = claim.asked_since, KEPT_WITHIN if claim.runs_vm else KEPT_WITHIN_BY_POD
    return claim.is_away(now) or (since is not None and now - since >= longest)


TURN: Final = Seconds(15.0)
"""A denied agent of ours asks again within 8 s, any agent within 15 s."""


def kept_for_others(node: NodeAccount, claim: Claim, wanted: Resources, now: Instant) -> Resources:
    """The part of the free room that is due to other denied VMs, if the VM of ``claim`` wants ``wanted``.

    Waking VMs are not among them: the room that they lack is not free.
    """
    # The usual case, in the path of each growth: no other VM is denied.
    if node.policy is None or node.unmet == claim.unmet:
        return ZERO
    rivals = [rival for rival in rivals_of(claim, node, now) if not rival.sleeps]
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


def rivals_of(claim: Claim, node: NodeAccount, now: Instant) -> Iterator[Claim]:
    """Other claims on the node whose VMs are denied and would take room there."""
    return (other for other in node.claims.values() if other is not claim and _has_turn(other, now))


def _has_turn(claim: Claim, now: Instant) -> bool:
    """Return True if the claim's VM is denied, could take room here, and asked a short time ago."""
    if claim.vm is None or not claim.unmet.any or now - claim.vm.heard_at > TURN:
        return False
    # Room would lie idle beside a VM whose pod's requests or whose permit the API refuses.
    if claim.unsecured.any or claim.vm.refusal:
        return False
    # One that leaves gets its room elsewhere; one with two pods may be held up by the node of the other.
    return not claim.is_migrating and claim.vm.hosts == [claim]
