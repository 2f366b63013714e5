"""Caps the sizes that a VM's object claims to its node's room (S4.5, S4.8).

Anyone who may edit a VM controls ``use``, its maximum and annotations, and must not take room from others that way:

- The guest's actual size always counts, because the controller reports it.
- ``use``, and grants of the original's scheduler, count if there is room, each resource whole or not at all, as a
  kubelet resizes pods. Otherwise the VM's earlier reservation counts: the VM is granted no more of that resource, and
  nothing moves to make room for it.
- A stored permit counts even without room, because a previous scheduler may have sent it, but only up to its node's
  capacity or the earlier reservation. It may exceed the VM's bounds, which may have been lowered since, up to the
  running machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from fractions import Fraction
from functools import reduce

from msgspec.structs import replace

from protocol.guest.sleep import ASLEEP
from protocol.messages import ObjectName
from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.accounts.claims import Claim, VmAccount
from scheduler_plugin.ledger.facts import WITHOUT_GUEST, NodeFacts, PodFacts, ResourceMask, VmFacts
from scheduler_plugin.ledger.state import LedgerState


def effective_facts(state: LedgerState, facts: VmFacts, account: VmAccount | None) -> VmFacts:
    """New ``facts``, capped to the nodes of the VM's pods. ``account`` is None for a new VM."""
    # Without a pod everything counts: a VM that is too large finds no node.
    if account is None:
        return _within_maximum(facts)
    claims = [claim for claim in account.hosts if state.nodes[claim.node].facts is not None]
    if not claims:
        # While its node is unknown, a known VM gets no more than it had. For a new VM, or one without pods, everything
        # counts until the node is known.
        is_first = account.facts is None or not account.hosts
        return (
            _within_maximum(facts) if is_first else _bounded(facts, account.in_use_or_held, ZERO, facts.permit or ZERO)
        )
    pods_on = Counter(claim.node for claim in claims)
    total = reduce(Resources.at_most, (_node_total(state, claim) for claim in claims))
    if account.facts is None:
        return _bounded(facts, ZERO, total, total)  # no agent has this permit of a new VM
    # If the size of a running guest is unknown, it may have what its object requests, up to its node's total.
    limit = total
    if facts.actual is not None or facts.phase in WITHOUT_GUEST or facts.phase == ASLEEP:
        limit = reduce(Resources.at_most, (size_limit(state, claim, pods_on[claim.node]) for claim in claims))
    permitted = reduce(Resources.at_most, (node_maximum(state, claim) for claim in claims))
    bounded = _bounded(facts, account.in_use_or_held, limit, permitted.at_least(account.reserved))
    bounded = _with_arrival_size(state, bounded, claims, account.facts.wakes_with or ZERO)
    # One node of the VM is known, which bounds every guest.
    return bounded if bounded.is_bounded else replace(bounded, is_bounded=True)


def reevaluate(state: LedgerState, account: VmAccount) -> None:
    """Count more of the VM's object if there is room for it now."""
    if account.is_deleted or account.facts is None or account.facts.declared is None:
        return
    # Room may have been freed since.
    account.learn(effective_facts(state, account.facts.declared, account))
    state.settle_vm(account)


def reevaluate_all(state: LedgerState) -> None:
    """Count more of all objects that are counted in part: no request triggers it for a VM without an agent."""
    for account in state.vms.values():
        reevaluate(state, account)


def size_limit(state: LedgerState, claim: Claim, pods: int = 1) -> Resources:
    """The guest's maximum size by the room of this claim's node, shared among the VM's ``pods`` there."""
    node = state.nodes[claim.node]
    # Room reserved for sleeping VMs is for waking ones.
    free = node.room.unreserved if claim.sleeps else node.room.free
    if pods > 1:
        # Two pods of one VM on a node grow together: each gets an equal part of the free room.
        free = Resources(free.cpu.scaled(Fraction(1, pods)), free.mem.scaled(Fraction(1, pods)))
    # On an overcommitted node the excess comes off the VM's own reservation.
    return (claim.reserved + free).minus_or_zero(claim.pod.overhead + node.overcommit)


def _node_total(state: LedgerState, claim: Claim) -> Resources:
    return state.nodes[claim.node].room.total.minus_or_zero(claim.pod.overhead)


def node_maximum(state: LedgerState, claim: Claim) -> Resources:
    """The maximum for this guest at any time since its node booted."""
    facts = state.nodes[claim.node].facts
    # Allocatable may have shrunk since the grant, by our settings or the kubelet's.
    return ZERO if facts is None else facts.ever_reservable.minus_or_zero(claim.pod.overhead)


def at_rebuild(facts: Iterable[VmFacts], nodes: Iterable[NodeFacts], pods: Iterable[PodFacts]) -> list[VmFacts]:
    """VMs of a first complete list, each capped to the node of its pod."""
    by_name = {node.name: node for node in nodes}
    places: dict[ObjectName, list[NodeFacts]] = {}
    for pod in pods:
        if pod.vm is not None and pod.node in by_name:
            places.setdefault(pod.vm, []).append(by_name[pod.node])
    # Neither the free room nor the node of the grant is known yet.
    largest = Resources.most(node.ever_reservable for node in by_name.values())
    return [
        _effective_listed(vm, places[vm.name], largest) if vm.name in places else _within_maximum(vm) for vm in facts
    ]


def _effective_listed(facts: VmFacts, nodes: Collection[NodeFacts], permitted: Resources) -> VmFacts:
    """``facts`` of a VM with pods on ``nodes``; a previous process may have granted any permit."""
    bounded = _bounded(facts, ZERO, Resources.most(node.reservable for node in nodes), permitted)
    largest = Resources.most(node.ever_reservable for node in nodes)
    if bounded.wakes_with is None or bounded.wakes_with.within(largest):
        return bounded
    # That process let no guest wake with more than its node ever had.
    return replace(bounded, wakes_with=bounded.wakes_with.at_most(largest), declared=bounded.declared or facts)


def observe_placed(state: LedgerState, claim: Claim, *, at_rebuild: bool) -> None:
    """Cap a VM whose pod another scheduler placed, without asking us.

    Its agent has no permit of ours, unless from a previous process (``at_rebuild``).
    """
    account = claim.vm
    if account is None or account.facts is None or state.nodes[claim.node].facts is None:
        return
    node_total = _node_total(state, claim)
    # The first pod on a known node: the VM had no bound so far.
    is_only = account.claims == [claim]
    is_unanswered = is_only and not (at_rebuild or account.agent)
    if is_unanswered:
        facts = _bounded(account.facts, ZERO, node_total, node_total)
        # No agent has a permit of ours yet, so none holds more than the node's total.
        account.outstanding.cap(node_total.at_least(facts.actual or ZERO))
    elif is_only:
        facts = _bounded(account.facts, ZERO, node_total, account.facts.permit or ZERO)
    else:
        facts = _bounded_by_node(state, account, account.facts, claim)
    if is_unanswered or facts is not account.facts:
        account.learn(facts)
        state.settle_vm(account)


def bound_by_node(state: LedgerState, name: str) -> None:
    """Cap the VMs of a node that became known to its total."""
    for claim in list(state.nodes[name].claims.values()):
        account = claim.vm
        if account is None or account.facts is None:
            continue
        facts = _bounded_by_node(state, account, account.facts, claim)
        if facts is not account.facts:
            account.learn(facts)
            state.settle_vm(account)


def _bounded_by_node(state: LedgerState, account: VmAccount, facts: VmFacts, claim: Claim) -> VmFacts:
    """``facts`` of a VM with a pod on a node that became known, bounded by that node."""
    node_total = _node_total(state, claim)
    # Another known node bounds the VM already.
    if any(other is not claim and state.nodes[other.node].facts is not None for other in account.claims):
        return _with_restart_size(facts, node_total, ZERO)
    return _bounded(facts, account.reserved.at_most(node_total), node_total, node_maximum(state, claim))


def _within_maximum(facts: VmFacts, base: Resources = ZERO) -> VmFacts:
    """``facts`` with the permit capped to what the VM may have, has, or had before (``base``)."""
    if facts.permit is None or facts.permit.within(facts.maximum) or facts.unreadable:
        return facts
    has = facts.wakes_with or facts.actual or ZERO
    maximum = Resources.most((facts.maximum, facts.limit, facts.use, has, facts.granted, base))
    return replace(facts, permit=facts.permit.at_most(maximum))


def _with_arrival_size(state: LedgerState, facts: VmFacts, claims: Iterable[Claim], known: Resources) -> VmFacts:
    """``facts`` of a sleeping VM with the size to reserve for another pod: more than ``known`` if there is room."""
    elsewhere = [claim for claim in claims if facts.pod not in (None, claim.pod.name)]
    if facts.wakes_with is None or not elsewhere:
        return facts
    limit = reduce(Resources.at_most, (size_limit(state, claim) for claim in elsewhere)).at_least(known)
    wakes_with = ResourceMask.of_increase(limit, facts.wakes_with).of(known.at_most(facts.wakes_with), facts.wakes_with)
    if wakes_with == facts.wakes_with:
        return facts
    return replace(facts, wakes_with=wakes_with, declared=facts.declared or facts)


def _with_restart_size(facts: VmFacts, limit: Resources, base: Resources) -> VmFacts:
    """``facts`` with the size after a restart, as far as there is room, each resource whole or not at all."""
    if facts.after_restart is None or facts.after_restart.within(limit.at_least(base)):
        return facts
    beyond = ResourceMask.of_increase(limit.at_least(base), facts.after_restart)
    return replace(facts, after_restart=beyond.of(base.at_most(facts.after_restart), facts.after_restart))


def _bounded(facts: VmFacts, in_use_or_held: Resources, limit: Resources, permitted: Resources) -> VmFacts:
    """``facts`` bounded by what the VM has (``in_use_or_held``), by the ``limit`` on its nodes, and by the largest
    credible permit (``permitted``).
    """
    original, base = facts.declared or facts, in_use_or_held.at_least(facts.actual or ZERO)
    facts = _with_restart_size(_within_maximum(facts, base), limit, base)
    permit = facts.permit and facts.permit.at_most(permitted.at_least(base))
    limit = limit.at_least(base)
    wanted = facts.use
    if facts.unreadable:
        # The status of an unreadable object may exceed its node; then use the spec's maximum.
        wanted = ResourceMask.of_increase(limit, wanted).of(facts.maximum.at_most(wanted), wanted)
    # Each resource whole or not at all, as a kubelet resizes pods.
    beyond = ResourceMask.of_increase(limit, wanted)
    use = beyond.of(base.at_most(wanted), wanted)
    granted = ResourceMask.of_increase(limit, facts.granted).of(base.at_most(facts.granted), facts.granted)
    maximum = beyond.of(use, facts.maximum)
    if (permit, use, granted, maximum) == (facts.permit, facts.use, facts.granted, facts.maximum):
        return facts
    return replace(facts, permit=permit, use=use, granted=granted, maximum=maximum, declared=original)
