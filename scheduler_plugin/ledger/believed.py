"""The part of what a VM's object says that its nodes can bear (S4.5, S4.8).

Whoever may edit a VM writes what it asks for: ``use``, its maximum, annotations. Nobody else may pay for that:

- What the guest has counts: its controller says so, whoever asked for it.
- ``use``, and what the original's scheduler granted, count where there is room, whole or not at all, as a kubelet
  resizes pods. Beyond that counts what was reserved for the VM before; the VM is granted nothing more of that
  resource, and misses nothing that others would have to make room for.
- A permit on the object counts up to what the VM's machine can take: its bounds may have been lowered since it was
  granted. A scheduler before this one may have answered it, so it counts even if there is no room; but no more than
  its node's capacity, unless that much was reserved before.
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


def believed(state: LedgerState, facts: VmFacts, account: VmAccount | None) -> VmFacts:
    """News of the VM of ``account``, as far as the nodes of its pods can bear it; None: it has not been heard of."""
    # A VM that has no place yet asks for all that it says, and finds no node if that is too much.
    if account is None:
        return _within_maximum(facts)
    claims = [claim for claim in account.hosts if state.nodes[claim.node].facts is not None]
    if not claims:
        # While the node of the VM's pod is not known, nothing counts beyond what the VM had. Of a VM that was not
        # known, or that runs in no pod, all counts until the node is known.
        is_first = account.facts is None or not account.hosts
        return _within_maximum(facts) if is_first else _bounded(facts, account.had, ZERO, facts.permit or ZERO)
    pods_on = Counter(claim.node for claim in claims)
    total = reduce(Resources.at_most, (_whole(state, claim) for claim in claims))
    if account.facts is None:
        return _bounded(facts, ZERO, total, total)  # nobody was answered a permit of a VM that is heard of now
    # If it is not known what a running guest has, it may have what its object asks for, up to what its node has.
    reach = total
    if facts.actual is not None or facts.phase in WITHOUT_GUEST or facts.phase == ASLEEP:
        reach = reduce(Resources.at_most, (reach_of(state, claim, pods_on[claim.node]) for claim in claims))
    permitted = reduce(Resources.at_most, (_ever(state, claim) for claim in claims))
    bounded = _bounded(facts, account.had, reach, permitted.at_least(account.reserved))
    bounded = _arriving(state, bounded, claims, account.facts.wakes_with or ZERO)
    # Some node of the VM is known, and no guest can have more than that.
    return bounded if bounded.is_bounded else replace(bounded, is_bounded=True)


def judge_again(state: LedgerState, account: VmAccount) -> None:
    """Count more of what the VM's object says, if there is room for it now. A deleted object says nothing."""
    if account.is_deleted or account.facts is None or account.facts.said is None:
        return
    # Room may have become free since the object was judged last.
    account.learn(believed(state, account.facts.said, account))
    state.settle_vm(account)


def judge_all_again(state: LedgerState) -> None:
    """Count more of all objects that ask for more than counts: for a VM without an agent nothing else does."""
    for account in state.vms.values():
        judge_again(state, account)


def reach_of(state: LedgerState, claim: Claim, pods: int = 1) -> Resources:
    """Greatest size of the guest by this claim's node alone, shared among the VM's ``pods`` there."""
    node = state.nodes[claim.node]
    # Whatever a node keeps for sleeping VMs is for one that wakes.
    free = node.room.left if claim.sleeps else node.room.free
    if pods > 1:
        # Two pods of one VM on a node grow together, so each gets an equal part of what is free.
        free = Resources(free.cpu.scaled(Fraction(1, pods)), free.mem.scaled(Fraction(1, pods)))
    # A node over its total gives nothing: its excess comes off the VM's own reservation.
    return (claim.reserved + free).minus_or_zero(claim.pod.around + node.over)


def _whole(state: LedgerState, claim: Claim) -> Resources:
    return state.nodes[claim.node].room.total.minus_or_zero(claim.pod.around)


def _ever(state: LedgerState, claim: Claim) -> Resources:
    """The most that this claim could leave its guest before its node's allocatable resources shrank."""
    facts = state.nodes[claim.node].facts
    # What is allocatable may have shrunk since the permit was granted: by our settings, or by the kubelet's.
    return ZERO if facts is None else facts.ever_reservable.minus_or_zero(claim.pod.around)


def at_rebuild(facts: Iterable[VmFacts], nodes: Iterable[NodeFacts], pods: Iterable[PodFacts]) -> list[VmFacts]:
    """VMs as a first complete list has them, each as far as the node of its pod can bear it."""
    known = {node.name: node for node in nodes}
    places: dict[ObjectName, list[NodeFacts]] = {}
    for pod in pods:
        if pod.vm is not None and pod.node in known:
            places.setdefault(pod.vm, []).append(known[pod.node])
    # The room is not known yet, nor on which node the permit was granted.
    largest = Resources.most(node.ever_reservable for node in known.values())
    return [_listed(vm, places[vm.name], largest) if vm.name in places else _within_maximum(vm) for vm in facts]


def _listed(facts: VmFacts, nodes: Collection[NodeFacts], permitted: Resources) -> VmFacts:
    """``facts`` of a VM with pods on ``nodes``, of which a process before this one may have answered anything."""
    bounded = _bounded(facts, ZERO, Resources.most(node.reservable for node in nodes), permitted)
    ever = Resources.most(node.ever_reservable for node in nodes)
    if bounded.wakes_with is None or bounded.wakes_with.within(ever):
        return bounded
    # That process has let no guest wake with more than its node ever had.
    return replace(bounded, wakes_with=bounded.wakes_with.at_most(ever), said=bounded.said or facts)


def seen_on_node(state: LedgerState, claim: Claim, *, at_rebuild: bool) -> None:
    """A pod runs a VM on a node that was not asked whether it has room: another scheduler has placed it.

    Its agent has had no answer, unless from a scheduler before this one (``at_rebuild``).
    """
    account = claim.vm
    if account is None or account.facts is None or state.nodes[claim.node].facts is None:
        return
    whole = _whole(state, claim)
    # The first pod on a known node: nothing has bounded the VM so far.
    is_only = account.claims == [claim]
    is_unanswered = is_only and not (at_rebuild or account.agent)
    if is_unanswered:
        facts = _bounded(account.facts, ZERO, whole, whole)
        # No agent was answered yet, so none can hold more than the node has.
        account.promises.cap(whole.at_least(facts.actual or ZERO))
    elif is_only:
        facts = _bounded(account.facts, ZERO, whole, account.facts.permit or ZERO)
    else:
        facts = _fitted(state, account, account.facts, claim)
    if is_unanswered or facts is not account.facts:
        account.learn(facts)
        state.settle_vm(account)


def node_known(state: LedgerState, name: str) -> None:
    """The node is known for the first time, or again: what its VMs asked for meanwhile counts up to what it has."""
    for claim in list(state.nodes[name].claims.values()):
        account = claim.vm
        if account is None or account.facts is None:
            continue
        facts = _fitted(state, account, account.facts, claim)
        if facts is not account.facts:
            account.learn(facts)
            state.settle_vm(account)


def _fitted(state: LedgerState, account: VmAccount, facts: VmFacts, claim: Claim) -> VmFacts:
    """``facts`` of a VM with a pod on a node that has just become known, as far as that node can bear them."""
    whole = _whole(state, claim)
    # Another known node has bounded the rest already.
    if any(other is not claim and state.nodes[other.node].facts is not None for other in account.claims):
        return _restarting(facts, whole, ZERO)
    return _bounded(facts, account.reserved.at_most(whole), whole, _ever(state, claim))


def _within_maximum(facts: VmFacts, base: Resources = ZERO) -> VmFacts:
    """``facts`` with a permit that is no more than the VM may have, has, or was given before (``base``)."""
    if facts.permit is None or facts.permit.within(facts.most) or facts.unreadable:
        return facts
    has = facts.wakes_with or facts.actual or ZERO
    most = Resources.most((facts.most, facts.limit, facts.use, has, facts.granted, base))
    return replace(facts, permit=facts.permit.at_most(most))


def _arriving(state: LedgerState, facts: VmFacts, claims: Iterable[Claim], known: Resources) -> VmFacts:
    """``facts`` of a sleeping VM with what it is to run with in another pod: more than ``known`` if there is room."""
    elsewhere = [claim for claim in claims if facts.pod not in (None, claim.pod.name)]
    if facts.wakes_with is None or not elsewhere:
        return facts
    reach = reduce(Resources.at_most, (reach_of(state, claim) for claim in elsewhere)).at_least(known)
    wakes_with = ResourceMask.of_rise(reach, facts.wakes_with).of(known.at_most(facts.wakes_with), facts.wakes_with)
    if wakes_with == facts.wakes_with:
        return facts
    return replace(facts, wakes_with=wakes_with, said=facts.said or facts)


def _restarting(facts: VmFacts, reach: Resources, base: Resources) -> VmFacts:
    """``facts`` with what a new machine may have: as much of it as there is room for, whole or not at all."""
    if facts.after_restart is None or facts.after_restart.within(reach.at_least(base)):
        return facts
    beyond = ResourceMask.of_rise(reach.at_least(base), facts.after_restart)
    return replace(facts, after_restart=beyond.of(base.at_most(facts.after_restart), facts.after_restart))


def _bounded(facts: VmFacts, had: Resources, reach: Resources, permitted: Resources) -> VmFacts:
    """``facts``, bounded by what the VM ``had``, by its ``reach`` on its nodes and by what it may be ``permitted``."""
    original, base = facts.said or facts, had.at_least(facts.actual or ZERO)
    facts = _restarting(_within_maximum(facts, base), reach, base)
    permit = facts.permit and facts.permit.at_most(permitted.at_least(base))
    reach = reach.at_least(base)
    wanted = facts.use
    if facts.unreadable:
        # The status of an unreadable object may name more than its node can bear; then the spec's maximum is asked
        # for instead.
        wanted = ResourceMask.of_rise(reach, wanted).of(facts.most.at_most(wanted), wanted)
    # Each resource counts whole or not at all, as a kubelet resizes pods.
    beyond = ResourceMask.of_rise(reach, wanted)
    use = beyond.of(base.at_most(wanted), wanted)
    granted = ResourceMask.of_rise(reach, facts.granted).of(base.at_most(facts.granted), facts.granted)
    most = beyond.of(use, facts.most)
    if (permit, use, granted, most) == (facts.permit, facts.use, facts.granted, facts.most):
        return facts
    return replace(facts, permit=permit, use=use, granted=granted, most=most, said=original)
