"""The permit rule: how much of what an agent asks for its VM gets (S4.5, S4.7, S4.9).

Rules that hold here:

- What does not exceed the VM's reservation is always granted; what exceeds it is granted as far as the node has room.
  CPU and memory are independent, and the unmet part replaces the pod's earlier pressure. It ends with the agent:
  at once where autoscaling is switched off, else after ``SILENT``.
- A VM that holds still for its migration is permitted what it has, whatever its agent does: the rest is pressure. Until
  its target pod has a node it may grow.
- ``lastPermit`` counts only for a VM that a rebuild found without a persisted permit: then its agent may use that much
  at any moment without asking, so it is reserved even over the node's total. Everywhere else the ledger knows better,
  and an agent's claim raises nothing.
- Where pods' requests follow permits, nothing above the reservation is permitted before they hold it (B.10). What is
  missing there is no pressure: another node would not help.
- A VM for which autoscaling is not enabled gets what it has.
- A permit never exceeds the VM's upper bound, unless the VM has more already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from protocol.messages import AgentRequest
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.claims import Claim, VmAccount
from scheduler_plugin.ledger.outcomes import Decision, NotReadyError, UnknownPodError
from scheduler_plugin.ledger.state import LedgerState


def decide(state: LedgerState, claim: Claim, request: AgentRequest, now: Instant) -> Decision:
    """Decides one request and records it. Raises ``UnknownPodError`` and ``NotReadyError``; then nothing changed."""
    account = _account(claim)
    policy = state.nodes[claim.node].policy
    if policy is None:
        raise NotReadyError(f"node {claim.node} of pod {request.pod} is not known yet")
    if request.metrics is not None:
        claim.metrics = request.metrics
    wanted, reserved = bounded(account, request.resources), account.reserved
    outside = False
    if account.is_old(claim.pod.uid, request.sequence, now) and account.permit is not None:
        permit = _held(claim, account, wanted.at_most(account.permit))
        account.answer_old(permit, request.sequence, now)
    else:
        by_room = wanted if wanted.within(account.reserved) else wanted.at_most(ceiling(state, account, claim))
        by_room = _held(claim, account, by_room)
        permit = _secured(state, claim, account, by_room)
        claim.unsecured = by_room.minus_or_zero(permit)
        if account.is_unproven and request.last_permit is not None:
            outside = True
            permit = permit.at_least(wanted.at_most(request.last_permit))
        account.answer(permit, request.resources, claim.pod.uid, request.sequence, now)
        unmet = wanted.minus_or_zero(by_room.at_least(permit)) if account.has_agent else ZERO
        _note_denial(state, claim, unmet, now)
    persist = account.write(state.next_revision())
    if account.reserved != reserved:
        state.settle_vm(account)
    return Decision(permit, policy.compute_unit, claim.holds_still, persist, state.finish(outside=outside))


def _account(claim: Claim) -> VmAccount:
    account, pod = claim.vm, claim.pod
    if account is None:
        raise UnknownPodError(f"pod {pod.name} runs no VM")
    if account.facts is None:
        raise NotReadyError(f"VirtualMachine {pod.vm} of pod {pod.name} is not known yet")
    if account.facts.unreadable:
        raise NotReadyError(f"VirtualMachine {pod.vm} cannot be read: {account.facts.unreadable}")
    if account.facts.pod is not None and account.facts.pod != pod.name:
        raise NotReadyError(f"VirtualMachine {pod.vm} runs in pod {account.facts.pod}, not in {pod.name}")
    return account


def bounded(account: VmAccount, wanted: Resources) -> Resources:
    """``wanted`` as far as the VM may go by its upper bound."""
    if account.facts is None or wanted.within(account.facts.most):
        return wanted
    return wanted.at_most(account.facts.most.at_least(account.in_use))


def ceiling(state: LedgerState, account: VmAccount, claim: Claim) -> Resources:
    """What the VM may reach: its reservation and what is free beside it, wherever it has a pod."""
    if not account.has_agent:
        return account.reserved
    pods_on = Counter(each.node for each in account.claims) if len(account.claims) > 1 else {}
    found = _reach(state, claim, pods_on)
    for other in account.claims if pods_on else ():
        found = found.at_most(_reach(state, other, pods_on))
    return found


def _reach(state: LedgerState, claim: Claim, pods_on: Mapping[str, int]) -> Resources:
    """How far the guest of this claim could grow by its node alone, shared with the VM's other pods there."""
    free = state.nodes[claim.node].room.free
    pods = pods_on.get(claim.node, 1)
    reach = claim.reserved + (free if pods == 1 else _share(free, pods))
    return reach if claim.pod.around is ZERO else reach.minus_or_zero(claim.pod.around)


def _held(claim: Claim, account: VmAccount, permit: Resources) -> Resources:
    """``permit`` as far as a VM may have it that may be holding still."""
    return permit.at_most(account.in_use) if claim.holds_still else permit


def _secured(state: LedgerState, claim: Claim, account: VmAccount, permit: Resources) -> Resources:
    """``permit`` as far as the pod's requests hold it against all other schedulers, where they follow permits."""
    if not state.follows_requests or permit.within(account.reserved):
        return permit
    secured = claim.secured
    return permit if secured is None else permit.at_most(account.reserved.at_least(secured))


def _share(free: Resources, pods: int) -> Resources:
    """The part of ``free`` that each of the VM's pods on one node may take."""
    return Resources(free.cpu.scaled(Fraction(1, pods)), free.mem.scaled(Fraction(1, pods)))


def _note_denial(state: LedgerState, claim: Claim, unmet: Resources, now: Instant) -> None:
    if unmet.any and claim.denied_since is None:
        claim.denied_since = now
    if unmet != claim.unmet:
        state.change(claim, unmet=unmet)
