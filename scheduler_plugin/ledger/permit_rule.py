"""The permit rule: how much of an agent's request its VM gets (S4.5, S4.7, S4.9).

Rules:

- A permit is at least what the VM has, and what its agent reports to hold up to the VM's reservation. It is more if
  there is room: the VM's reservation plus its node's free room, minus the node's excess. So a permit never overcommits
  a node, whatever the object says.
- Other denied VMs keep their fair shares of the free room (``sharing``). No VM loses what it has.
- CPU and memory are independent.
- A permit never exceeds the VM's upper bound, unless the VM already has more, or sleeps with more. A pod that another
  controller resizes too must keep its size.
- A sleeping VM uses nothing. A waking one gets its full size, before any growth, or nothing. Concurrent wakes on a node
  are limited (B.18).
- One agent per VM is active; requests of others are a conflict.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce

from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger import outcomes
from scheduler_plugin.ledger.accounts.claims import Claim, VmAccount
from scheduler_plugin.ledger.accounts.early_sleep import update_asleep_size
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.permit_account import Message
from scheduler_plugin.ledger.accounts.sharing import PATIENCE, room_due_to_others, should_stay, shrink_request
from scheduler_plugin.ledger.accounts.wake_order import is_next_to_wake
from scheduler_plugin.ledger.effective_facts import effective_facts, node_maximum, reevaluate, size_limit
from scheduler_plugin.ledger.events import PermitRequested, PermitWritten, WriteOutcome
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.state import LedgerState
from scheduler_plugin.texts import refusals


def decide(state: LedgerState, event: PermitRequested, now: Instant) -> outcomes.PermitDecision:
    """Decide and record one request of an agent.

    Raises ``UnknownPodError`` and ``NotReadyError``, without any change, and ``OtherAgentError``.
    """
    state.require_ready()
    claim, request = claim_of(state, event.uid), event.request
    account = _account(claim)
    node = state.nodes[claim.node]
    policy = node.policy
    if policy is None:
        raise outcomes.NotReadyError(refusals.NODE_UNKNOWN.format(node=claim.node, pod=request.pod))
    agent = event.agent or event.uid
    message = Message(claim.pod.uid, agent, request.sequence, request.resources, request.last_permit)
    if account.has_agent:
        _require_active(state, claim, account, message, now)
    # Changes accounts, so nothing below may raise: only ``finish`` publishes the new room to binds.
    reevaluate(state, account)
    if account.awaits_first_message:
        # This message says what the agent holds.
        account.awaits_first_message = False
        state.settle_vm(account)
    reserved = account.reserved
    permit, persist, outside = _permit_and_write(state, claim, account, message, now)
    if request.metrics is not None:
        claim.metrics = request.metrics
    # Only with the write of the permit: the agent of a waking VM repeats its request.
    is_granted = request.resources.within(permit) and persist is not None and persist.before_answer
    if account.reserved != reserved:
        state.settle_vm(account)
    effects = state.finish(outside=outside)
    update_asleep_size(claim, permit, request.needs, follows_requests=state.follows_requests)
    shrink = shrink_request(node, claim, permit, request.needs, now)
    shrink_to = shrink.shrink_to
    if shrink_to is None and state.lacks_headroom and should_stay(node, permit, request, now):
        shrink_to = permit
    return outcomes.PermitDecision(
        permit,
        policy.compute_unit,
        (claim.is_frozen and not account.sleeps) or (account.facts is not None and account.facts.refused != ""),
        persist,
        effects,
        shrink_to,
        shrink.ask_again,
        wakes_since=account.wake_asked_at if is_granted else None,
    )


def _permit_and_write(
    state: LedgerState, claim: Claim, account: VmAccount, message: Message, now: Instant
) -> tuple[Resources, outcomes.PersistPermit | None, bool]:
    """The permit, its write, and True if a fact from outside caused it."""
    wanted, by_room = _size_by_room(state, claim, account, message, now)
    if claim.is_frozen and not account.sleeps:
        # During its migration a VM keeps what it has, and the rest of the request is pressure. A sleeping VM may wake.
        by_room = by_room.at_most(account.in_use)
    revision, last = state.next_revision(), message.last_permit
    if account.permit is not None and account.is_old(message, now):
        permit = by_room.at_most(account.permit)
        return permit, account.answer_old(permit, message.sequence, now, revision), False
    permit = _secured(state, claim, account, by_room)
    if account.sleeps and permit is not by_room:
        # A guest wakes at full size only.
        permit = permit.at_most(account.in_use)
    claim.unsecured = ZERO if permit is by_room else by_room.minus_or_zero(permit)
    outside = account.is_unproven and last is not None
    # A rebuild found no stored permit. The agent may use its last one at any time without asking, so reserve that even
    # over the node's total.
    if account.is_unproven and last is not None:
        permit = permit.at_least(wanted.at_most(last))
        covered = message.wanted.at_most(last).at_most(_bound_of_agent(state, claim, account))
        account.reserve_unproven(permit.at_least(covered), now)
    persist = account.answer(message, permit, now, revision, state.nodes[claim.node].claims)
    unmet = ZERO
    if by_room is not wanted and account.has_agent:
        # What the requests do not cover yet is no pressure: another node would not help.
        unmet = wanted.minus_or_zero(by_room.at_least(permit))
    if account.sleeps:
        account.record_wake_request(wanted, now)
        if not (wanted.any and wanted.within(permit)):
            claim.woken_at = None
        elif claim.woken_at is None:
            claim.woken_at = now
        # Move nothing for a VM that would not fit its node even if that were empty.
        unmet = unmet if fits_ever(state.nodes[claim.node], claim, wanted) else ZERO
    _note_denial(state, claim, unmet, now)
    return permit, persist, outside


def _bound_of_agent(state: LedgerState, claim: Claim, account: VmAccount) -> Resources:
    """The size up to which an agent may use its last permit without asking."""
    facts = account.facts
    # Believed bounds are lower while there is no room for the object's request, which the agent may have made by that
    # permit.
    maximum = ZERO if facts is None else (facts.declared or facts).maximum
    # The bounds of a pod may have been lowered since, and its kubelet does not know them.
    return maximum.at_least(node_maximum(state, claim)) if facts is not None and facts.is_pod else maximum


def _require_active(state: LedgerState, claim: Claim, account: VmAccount, message: Message, now: Instant) -> None:
    rival = account.active_rival(message, now, state.nodes[claim.node].claims)
    if rival is None:
        return
    account.record_refused(message, now)
    where, left = state.claims[rival].pod.name, account.active_until - now
    raise outcomes.OtherAgentError(refusals.OTHER_AGENT.format(vm=account.name, pod=where, left=left))


def _size_by_room(
    state: LedgerState, claim: Claim, account: VmAccount, message: Message, now: Instant
) -> tuple[Resources, Resources]:
    """The requested size within the VM's bounds, and the part of it that the VM has, its agent holds, or that fits."""
    wanted = bounded(account, message.wanted, message.last_permit)
    if not account.has_agent:
        # Autoscaling is off: the VM gets what it has.
        return wanted, wanted.at_most(account.in_use)
    # A wake that the previous process may have granted is reserved, but all VMs may wake at once after a failover.
    is_doubt = account.uncertain_wake.any and claim.woken_at is None
    if wanted.within(account.reserved) and not is_doubt and not _is_over(state, account):
        return wanted, wanted
    # At least what the VM has, and what its agent reports to hold within the reservation.
    own = account.in_use
    # A sleeping VM's agent holds nothing: the guest starts by the stored permit only.
    if message.last_permit is not None and not account.sleeps:
        own = own.at_least(message.last_permit.at_most(account.reserved))
    return wanted, wanted.at_most(ceiling(state, account, claim, wanted, now).at_least(own))


def _is_over(state: LedgerState, account: VmAccount) -> bool:
    for claim in account.claims:
        room = state.nodes[claim.node].room
        if claim.left_with is None and not room.reserved.within(room.total):
            return True
    return False


def claim_of(state: LedgerState, uid: str) -> Claim:
    """The pod's claim. Raises ``UnknownPodError``."""
    claim = state.claims.get(uid)
    if claim is None:
        raise outcomes.UnknownPodError(refusals.NO_CLAIM.format(uid=uid))
    return claim


def _account(claim: Claim) -> VmAccount:
    account, pod = claim.vm, claim.pod
    if account is None:
        raise outcomes.UnknownPodError(refusals.RUNS_NO_VM.format(pod=pod.name))
    if account.facts is None:
        raise outcomes.NotReadyError(refusals.VM_UNKNOWN.format(pod=pod))
    if account.facts.unreadable:
        raise outcomes.NotReadyError(refusals.VM_UNREADABLE.format(pod=pod, why=account.facts.unreadable))
    if claim.left_with is not None:
        raise outcomes.NotReadyError(refusals.VM_LEFT.format(pod=pod))
    if account.facts.pod is not None and account.facts.pod != pod.name:
        raise outcomes.NotReadyError(refusals.VM_ELSEWHERE.format(pod=pod, runs_in=account.facts.pod))
    return account


def bounded(account: VmAccount, wanted: Resources, holds: Resources | None = None) -> Resources:
    """``wanted`` capped to the VM's upper bound.

    If the object requests more than counts, an agent that ``holds`` that much may have written it.
    """
    if account.facts is None or wanted.within(account.facts.maximum):
        return wanted
    # A sleeping guest keeps the size that it wakes with, even if its bounds were lowered.
    base = account.in_use.at_least(account.facts.wakes_with or ZERO)
    if holds is not None and account.facts.declared is not None:
        base = base.at_least(holds.at_most(account.reserved))
    return wanted.at_most(account.facts.maximum.at_least(base))


def ceiling(state: LedgerState, account: VmAccount, claim: Claim, wanted: Resources, now: Instant) -> Resources:
    """Size limit of a VM whose agent requests ``wanted``: its reservation plus the free room minus the excess, on each
    node of its guest, without the shares of other denied VMs.
    """
    # Used by ``request_orders`` too. Do not hand out fractions of the free room: repeated requests would add up to all.
    limit, hosts = size_limit(state, claim), account.hosts
    if len(hosts) > 1:
        pods_on = Counter(host.node for host in hosts)
        limit = reduce(Resources.at_most, (size_limit(state, host, pods_on[host.node]) for host in (claim, *hosts)))
    node = state.nodes[claim.node]
    if account.sleeps:
        return limit if is_next_to_wake(node, claim, wanted, limit, now) else ZERO
    due_to_others = room_due_to_others(node, claim, wanted, now)
    return limit if due_to_others is ZERO else limit.minus_or_zero(due_to_others)


def fits_ever(node: NodeAccount, claim: Claim, wanted: Resources) -> bool:
    """Return True if the guest would fit its node with ``wanted`` if the node were empty."""
    return (wanted + claim.pod.overhead).within(node.room.total)


def _secured(state: LedgerState, claim: Claim, account: VmAccount, permit: Resources) -> Resources:
    """``permit`` capped to what the pod's requests cover, if requests follow permits."""
    if not state.follows_requests or permit.within(account.in_use_or_held):
        return permit
    secured = claim.secured
    return permit if secured is None else permit.at_most(account.in_use_or_held.at_least(secured))


def _note_denial(state: LedgerState, claim: Claim, unmet: Resources, now: Instant) -> None:
    if not (unmet.any or claim.unmet.any):
        return
    claim.denied_since = now if claim.denied_since is None else claim.denied_since
    # A waking VM moves on its own soon.
    if unmet != claim.unmet and not claim.sleeps:
        claim.denial_cost = claim.denial_cost.changed(claim.unmet, unmet, now)
    # A waking VM's size is from its object: others must not stay small for it forever, even if its owner keeps
    # changing that size, and with it the denial.
    asked_at = None if claim.vm is None else claim.vm.wake_asked_at
    claim.is_long_denied = asked_at is not None and now - asked_at >= PATIENCE
    state.change(claim, unmet=unmet)


# Writes of permits ---------------------------------------------------------------------------------------------------


def permit_written(state: LedgerState, event: PermitWritten) -> None:
    """Record the outcome of a permit's write."""
    account = state.vms.get(event.vm)
    if account is None:
        return
    before, reserved = account.facts, account.reserved
    facts = event.facts and effective_facts(state, event.facts, account)
    if event.outcome is WriteOutcome.UNKNOWN:
        account.outcome_unknown(event.revision, event.version)
    elif event.outcome is WriteOutcome.REFUSED or facts is None:
        account.refused(event.revision, event.why, facts)
    else:
        account.confirmed(event.revision, facts)
    _update_claims(state, account, before, reserved)


def _update_claims(state: LedgerState, account: VmAccount, previous: VmFacts | None, reserved: Resources) -> None:
    """Update claims after a write; ``previous`` facts and ``reserved`` are from before it."""
    vm, name = account.facts, account.name
    if vm is None or name is None:
        return
    # Most writes change only the annotation, and so no claim. For a migrating VM, try its reservation again.
    if (
        reserved == account.reserved
        and not state.migrations.of(name)
        and previous is not None
        and vm == previous.with_permit(vm.version, vm.permit)
    ):
        return
    state.recount(name)
    state.migrations.mark_dirty(name)
    state.settle_vm(account)
