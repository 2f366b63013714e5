"""Explanation of a VM's size, from everything that the ledger knows about one pod."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.names import ANNOTATION_APPROVED
from protocol.pod_database import PodDatabase
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import Claim, FreedRoom, VmAccount
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.pod_requests import PodRequests
from scheduler_plugin.ledger.accounts.sharing import promised_to, recently_freed
from scheduler_plugin.ledger.accounts.wake_order import active_wakes, wakes_at_once
from scheduler_plugin.ledger.facts import RunnerRequests
from scheduler_plugin.ledger.permit_rule import fits_ever
from scheduler_plugin.texts import explanations


@dataclass(frozen=True, slots=True)
class ClaimExplanation:
    """Explanation of a claim, which is the maximum of its ``floors``."""

    floors: dict[str, Resources]
    denied_for: Seconds | None  # how long the VM has been denied something
    denied_by: str | None
    promised: Resources  # denied part that other VMs are about to free
    last_freed: FreedRoom | None
    requests: Resources | None = None  # of the guest's container; None if they do not follow the VM
    requests_secured: Resources | None = None  # part that the kubelet has allocated
    # Why the requests do not cover the reservation, or why a database in a pod cannot grow.
    requests_problem: str = ""
    sleep: str = ""  # describes the reservation of a sleeping or waking VM


def explain(claim: Claim, node: NodeAccount, now: Instant, *, follows_requests: bool = False) -> ClaimExplanation:
    """Explain ``claim`` on ``node``."""
    account, runner = claim.vm, claim.pod.runner if follows_requests else None
    return ClaimExplanation(
        floors=_floors(claim, account),
        denied_for=None if claim.denied_since is None else Seconds(now - claim.denied_since),
        denied_by=_denied_by(claim, node, now),
        promised=promised_to(claim.unmet, node, now),
        last_freed=recently_freed(claim, now),
        requests=None if runner is None else runner.requested,
        requests_secured=None if runner is None else (claim.resizes or PodRequests()).secured(runner),
        requests_problem=_problem(claim, node, now, follows_requests=follows_requests),
        sleep=_sleep(claim, node, now),
    )


def _sleep(claim: Claim, node: NodeAccount, now: Instant) -> str:
    account = claim.vm
    if account is None or account.facts is None or account.facts.wakes_with is None:
        return ""
    size, reserved = account.facts.wakes_with, account.reserved
    if not account.facts.may_be_woken.any:
        text = explanations.ASLEEP_WITH_PERMIT if reserved.any else explanations.ASLEEP
        return text.format(size=size, reserved=reserved)
    if size.within(account.stored_low):
        return explanations.WAKES.format(size=size)
    if not fits_ever(node, claim, size):
        why = explanations.NEVER_WAKES.format(room=node.room)
    else:
        why = _denied_by(claim, node, now) or account.refusal
    return (explanations.WAKES_LATER if why else explanations.WAKES_SOON).format(size=size, why=why)


def _problem(claim: Claim, node: NodeAccount, now: Instant, *, follows_requests: bool) -> str:
    if claim.vm is None:
        return ""
    if claim.pod.database is not None:
        return _pod_problem(claim.pod.database, claim.vm)
    return _requests_problem(claim, claim.vm, node, now) if follows_requests else ""


def _requests_problem(claim: Claim, account: VmAccount, node: NodeAccount, now: Instant) -> str:
    runner, resizes = claim.pod.runner, claim.resizes or PodRequests()
    if runner is None:
        return explanations.LEFT_AS_THEY_ARE
    if resizes.exempt_because:
        return explanations.EXEMPT.format(why=resizes.exempt_because)
    if runner.problem:
        return explanations.NOT_GIVEN.format(why=runner.problem)
    # Include what the permit lacks only because of the requests.
    wanted = account.reserved.at_least((account.permit or ZERO) + claim.unsecured)
    if resizes.raising.parts_at(now).any or (resizes.raising.parts.any and not wanted.within(runner.requested)):
        return explanations.NOT_RAISED.format(why=resizes.raising.why)
    problem = _pending_requests(runner, resizes, account)
    # The requests are high enough: the rest is up to the kubelet.
    if problem or wanted.within(runner.requested):
        return problem
    fits = node.facts is None or (wanted + claim.pod.overhead).within(node.facts.allocatable)
    return explanations.TOO_LITTLE if fits else explanations.NODE_HAS_NO_MORE


def _pod_problem(database: PodDatabase, account: VmAccount) -> str:
    if account.facts is not None and account.facts.refused:
        return account.facts.refused
    return "" if database.objection is None else explanations.NOT_GIVEN.format(why=database.objection)


def _pending_requests(runner: RunnerRequests, resizes: PodRequests, account: VmAccount) -> str:
    """The reason why requests may not be in effect yet; empty if they are."""
    if resizes.no_answer:
        return explanations.CHANGE_UNKNOWN.format(why=resizes.no_answer)
    if not runner.requested.within(resizes.secured(runner)):
        return explanations.NOT_ALLOCATED_YET
    if resizes.lowering.parts.any and not runner.requested.within(account.reserved):
        return explanations.NOT_LOWERED.format(why=resizes.lowering.why)
    return ""


def _floors(claim: Claim, account: VmAccount | None) -> dict[str, Resources]:
    if account is None or account.facts is None:
        return {explanations.POD_REQUESTS: claim.pod.requests}
    # The VM has left this pod.
    if claim.left_with is not None:
        return {explanations.SIZE_WHEN_LEFT: claim.left_with, explanations.POD_REQUESTS: claim.pod.requests}
    overhead = claim.pod.overhead
    offered = Resources.most(offer.permit for offer in account.offers.values())
    use = explanations.UNREADABLE_MOST if account.facts.unreadable else explanations.GUEST_USE
    use, has = (
        (explanations.CONTAINER_REQUESTS, explanations.CONTAINER_HAS)
        if account.facts.is_pod
        else (use, explanations.GUEST_HAS)
    )
    guest = {
        explanations.HELD_PERMIT: account.held,
        explanations.OFFERED_PERMIT: offered,
        explanations.STORED_PERMIT: account.stored_high,
        use: account.facts.use,
        has: account.facts.actual or ZERO,
        explanations.ORIGINALS_GRANT.format(annotation=ANNOTATION_APPROVED): account.facts.granted,
    }
    floors = {source: amount + overhead for source, amount in guest.items() if amount.any}
    floors[explanations.POD_REQUESTS] = claim.pod.requests
    if claim.resizes is not None and claim.pod.runner is not None and claim.resizes.may_land:
        floors[explanations.RESIZE_LANDING] = claim.resizes.largest_in_flight + overhead
    # Zeros explain nothing.
    return {source: amount for source, amount in floors.items() if amount.any}


def _denied_by(claim: Claim, node: NodeAccount, now: Instant) -> str | None:
    if not claim.unmet.any:
        return None
    # Room would not help: a VM must not be resized while it is copied.
    if claim.is_frozen:
        return explanations.FROZEN_BY_MIGRATION
    most = wakes_at_once(node)
    if claim.sleeps and claim.unmet.within(node.room.unreserved) and (wakes := active_wakes(node, now)) >= most:
        return explanations.WAKES_AT_ONCE.format(node=node.name, most=most, wakes=wakes)
    # It was not free when the agent asked, or is due to others.
    free = node.room.unreserved if claim.sleeps else node.room.free
    is_shared = node.unmet != claim.unmet and free.any
    text = explanations.NODE_SHARED if is_shared else explanations.NODE_FULL
    text = text.format(room=node.room, free=free, lacking=claim.unmet)
    is_kept = node.room.for_waking.any and not claim.sleeps
    return explanations.RESERVED_FOR_WAKING.format(text=text, room=node.room) if is_kept else text
