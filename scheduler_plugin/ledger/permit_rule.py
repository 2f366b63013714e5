"""The permit rule: how much of an agent's request its VM gets (S4.5, S4.7, S4.9).

Rules that hold here:

- What the VM has is always granted, and so is what the agent says that it holds, as far as it is reserved for the VM.
  What exceeds both is granted as far as there is room: the VM's reservation plus what its node has free, less the
  node's excess. So a permit never lifts a node over its total, whatever the object records.
- Of what is free, other denied VMs keep their fair shares (``sharing``). Nothing that a VM has is taken for that.
- CPU and memory are independent.
- A permit never exceeds the VM's upper bound, unless the VM has more already, or sleeps with more. A pod that something
  else sizes, too, is told to keep its size.
- A sleeping VM has nothing. One that is waking is granted all that it asks for, before any growth, or nothing. A
  node wakes a limited number at once (B.18).
- One agent of a VM is answered, and others get a conflict.
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
from scheduler_plugin.ledger.accounts.sharing import PATIENCE, asked_back, kept_for_others
from scheduler_plugin.ledger.accounts.wake_turns import is_next_to_wake
from scheduler_plugin.ledger.believed import believed, judge_again, reach_of
from scheduler_plugin.ledger.events import AgentAsked, PermitWritten, WriteEnd
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.state import LedgerState
from scheduler_plugin.texts import refusals


def decide(state: LedgerState, event: AgentAsked, now: Instant) -> outcomes.PermitDecision:
    """Decides one request of an agent and records it.

    Raises ``UnknownPodError`` and ``NotReadyError``; then nothing changed. Raises ``OtherAgentError``.
    """
    state.require_ready()
    claim, request = claim_of(state, event.uid), event.request
    account = _account(claim)
    policy = state.nodes[claim.node].policy
    if policy is None:
        raise outcomes.NotReadyError(refusals.NODE_UNKNOWN.format(node=claim.node, pod=request.pod))
    agent = event.agent or event.uid
    message = Message(claim.pod.uid, agent, request.sequence, request.resources, request.last_permit)
    if account.has_agent:
        _require_turn(state, claim, account, message, now)
    # Changes the books, so nothing after it may raise: only ``finish`` publishes the new room to binds.
    judge_again(state, account)
    if account.is_unheard:
        # From this message on it is known what the agent holds.
        account.is_unheard = False
        state.settle_vm(account)
    reserved = account.reserved
    permit, persist, outside = _decided(state, claim, account, message, now)
    if request.metrics is not None:
        claim.metrics = request.metrics
    # Only with the write of the permit: the agent of a VM that is waking repeats itself.
    is_granted = request.resources.within(permit) and persist is not None and persist.before_answer
    if account.reserved != reserved:
        state.settle_vm(account)
    effects = state.finish(outside=outside)
    update_asleep_size(claim, permit, request.needs, follows_requests=state.follows_requests)
    wish = asked_back(state.nodes[claim.node], claim, permit, request.needs, now)
    return outcomes.PermitDecision(
        permit,
        policy.compute_unit,
        (claim.holds_still and not account.sleeps) or _is_refused(account),
        persist,
        effects,
        wish.shrink_to,
        wish.again,
        wakes_since=account.wake_asked_at if is_granted else None,
    )


def _decided(
    state: LedgerState, claim: Claim, account: VmAccount, message: Message, now: Instant
) -> tuple[Resources, outcomes.PersistPermit | None, bool]:
    """The permit, the write that it needs, and whether it follows a fact from outside."""
    wanted, by_room = _by_room(state, claim, account, message, now)
    if claim.holds_still and not account.sleeps:
        # A VM that holds still for its migration is permitted what it has, whatever its agent does: the rest is
        # pressure. One that sleeps has to wake first, and is not resized by that.
        by_room = by_room.at_most(account.in_use)
    revision, last = state.next_revision(), message.last_permit
    if account.permit is not None and account.is_old(message, now):
        permit = by_room.at_most(account.permit)
        return permit, account.answer_old(permit, message.sequence, now, revision), False
    permit = _secured(state, claim, account, by_room)
    if account.sleeps and permit is not by_room:
        # A part of its size wakes no guest.
        permit = permit.at_most(account.in_use)
    claim.unsecured = ZERO if permit is by_room else by_room.minus_or_zero(permit)
    outside = account.is_unproven and last is not None
    # A rebuild found no persisted permit. The agent may use its last one at any moment without asking, so that is
    # reserved even over the node's total.
    if account.is_unproven and last is not None:
        permit = permit.at_least(wanted.at_most(last))
        account.honour(permit.at_least(_held_unasked(account, message, last)), now)
    persist = account.answer(message, permit, now, revision, state.nodes[claim.node].claims)
    unmet = ZERO
    if by_room is not wanted and account.has_agent:
        # What the pod's requests do not hold yet is no pressure: another node would not help.
        unmet = wanted.minus_or_zero(by_room.at_least(permit))
    if account.sleeps:
        account.note_wake(wanted, now)
        if not (wanted.any and wanted.within(permit)):
            claim.woken_at = None
        elif claim.woken_at is None:
            claim.woken_at = now
        # Nobody makes room for a VM that its node could not wake if it were empty.
        unmet = unmet if fits_ever(state.nodes[claim.node], claim, wanted) else ZERO
    _note_denial(state, claim, unmet, now)
    return permit, persist, outside


def _held_unasked(account: VmAccount, message: Message, last: Resources) -> Resources:
    """The part of its ``last`` permit that the agent may use after this message, as far as the object's bounds go."""
    facts = account.facts
    # Bounds are counted lower while there is no room for what the object asks for, which the agent may have ordered by
    # that permit.
    return ZERO if facts is None else message.asked.at_most(last).at_most((facts.said or facts).most)


def _require_turn(state: LedgerState, claim: Claim, account: VmAccount, message: Message, now: Instant) -> None:
    rival = account.rival_of(message, now, state.nodes[claim.node].claims)
    if rival is None:
        return
    account.turn_away(message, now)
    where, left = state.claims[rival].pod.name, account.turn_until - now
    raise outcomes.OtherAgentError(refusals.OTHER_AGENT.format(vm=account.name, pod=where, left=left))


def _by_room(
    state: LedgerState, claim: Claim, account: VmAccount, message: Message, now: Instant
) -> tuple[Resources, Resources]:
    """The size that the VM's bounds allow, and that as far as the VM has it, its agent holds it, or there is room."""
    wanted = bounded(account, message.asked, message.last_permit)
    if not account.has_agent:
        # Autoscaling is not enabled: the VM gets what it has.
        return wanted, wanted.at_most(account.in_use)
    # What the process before may have granted to wake is reserved, but after a fail-over of all at once.
    is_doubt = account.wake_doubt.any and claim.woken_at is None
    if wanted.within(account.reserved) and not is_doubt and not _is_over(state, account):
        return wanted, wanted
    # Never less than the VM has, and what its agent says it holds, as far as that is reserved.
    own = account.in_use
    # An agent of a sleeping VM holds nothing: its guest starts by the stored permit alone.
    if message.last_permit is not None and not account.sleeps:
        own = own.at_least(message.last_permit.at_most(account.reserved))
    return wanted, wanted.at_most(ceiling(state, account, claim, wanted, now).at_least(own))


def _is_over(state: LedgerState, account: VmAccount) -> bool:
    for claim in account.claims:
        room = state.nodes[claim.node].room
        if claim.left is None and not room.reserved.within(room.total):
            return True
    return False


def claim_of(state: LedgerState, uid: str) -> Claim:
    """The claim of the pod. Raises ``UnknownPodError``."""
    claim = state.claims.get(uid)
    if claim is None:
        raise outcomes.UnknownPodError(refusals.NO_CLAIM.format(uid=uid))
    return claim


def _is_refused(account: VmAccount) -> bool:
    return account.facts is not None and account.facts.refused != ""


def _account(claim: Claim) -> VmAccount:
    account, pod = claim.vm, claim.pod
    if account is None:
        raise outcomes.UnknownPodError(refusals.RUNS_NO_VM.format(pod=pod.name))
    if account.facts is None:
        raise outcomes.NotReadyError(refusals.VM_UNKNOWN.format(pod=pod))
    if account.facts.unreadable:
        raise outcomes.NotReadyError(refusals.VM_UNREADABLE.format(pod=pod, why=account.facts.unreadable))
    if claim.left is not None:
        raise outcomes.NotReadyError(refusals.VM_LEFT.format(pod=pod))
    if account.facts.pod is not None and account.facts.pod != pod.name:
        raise outcomes.NotReadyError(refusals.VM_ELSEWHERE.format(pod=pod, runs_in=account.facts.pod))
    return account


def bounded(account: VmAccount, wanted: Resources, holds: Resources | None = None) -> Resources:
    """``wanted`` as far as the VM may go by its upper bound.

    If its object asks for more than counts, an agent that ``holds`` that much may have ordered it.
    """
    if account.facts is None or wanted.within(account.facts.most):
        return wanted
    # A guest that sleeps has the size with which it wakes, even if its bounds were lowered since.
    had = account.in_use.at_least(account.facts.wakes_with or ZERO)
    if holds is not None and account.facts.said is not None:
        had = had.at_least(holds.at_most(account.reserved))
    return wanted.at_most(account.facts.most.at_least(had))


def ceiling(state: LedgerState, account: VmAccount, claim: Claim, wanted: Resources, now: Instant) -> Resources:
    """Limit of a VM whose agent wants ``wanted``: its reservation and the free room, less the excess, of each node of
    its guest; and less what is due to other denied VMs.
    """
    # Bounds ``request_orders`` as well. Each request computes it again: half of the free room, say, would become the
    # whole as the agent repeats itself.
    reach, hosts = reach_of(state, claim), account.hosts
    if len(hosts) > 1:
        pods_on = Counter(host.node for host in hosts)
        reach = reduce(Resources.at_most, (reach_of(state, host, pods_on[host.node]) for host in (claim, *hosts)))
    node = state.nodes[claim.node]
    if account.sleeps:
        return reach if is_next_to_wake(node, claim, wanted, reach, now) else ZERO
    due_to_others = kept_for_others(node, claim, wanted, now)
    return reach if due_to_others is ZERO else reach.minus_or_zero(due_to_others)


def fits_ever(node: NodeAccount, claim: Claim, wanted: Resources) -> bool:
    """Return True if the guest would fit with ``wanted`` on its node if that were empty."""
    return (wanted + claim.pod.around).within(node.room.total)


def _secured(state: LedgerState, claim: Claim, account: VmAccount, permit: Resources) -> Resources:
    """``permit`` as far as the pod's requests secure it against all other schedulers, if requests follow permits."""
    if not state.follows_requests or permit.within(account.had):
        return permit
    secured = claim.secured
    return permit if secured is None else permit.at_most(account.had.at_least(secured))


def _note_denial(state: LedgerState, claim: Claim, unmet: Resources, now: Instant) -> None:
    if not (unmet.any or claim.unmet.any):
        return
    claim.denied_since = now if claim.denied_since is None else claim.denied_since
    # The size of a VM that wakes is what its object asks for: its neighbours must not stay small for it for ever.
    claim.is_long_denied = now - claim.denied_since >= PATIENCE
    state.change(claim, unmet=unmet)


# Writes of permits ---------------------------------------------------------------------------------------------------


def permit_written(state: LedgerState, event: PermitWritten) -> None:
    """The write of a permit has ended."""
    account = state.vms.get(event.vm)
    if account is None:
        return
    before, reserved = account.facts, account.reserved
    facts = event.facts and believed(state, event.facts, account)
    if event.outcome is WriteEnd.UNKNOWN:
        account.unsure(event.revision, event.version)
    elif event.outcome is WriteEnd.REFUSED or facts is None:
        account.refused(event.revision, event.why, facts)
    else:
        account.confirmed(event.revision, facts)
    _written(state, account, before, reserved)


def _written(state: LedgerState, account: VmAccount, known: VmFacts | None, reserved: Resources) -> None:
    """A write of the VM's permit has ended; before, this was ``known`` and ``reserved``."""
    vm, name = account.facts, account.name
    if vm is None or name is None:
        return
    # Most writes change nothing but the annotation: then no claim of the VM can have changed. For one that moves, room
    # is looked for again.
    if (
        reserved == account.reserved
        and not state.migrations.of(name)
        and known is not None
        and vm == known.with_permit(vm.version, vm.permit)
    ):
        return
    state.recount(name)
    state.migrations.disturb(name)
    state.settle_vm(account)
