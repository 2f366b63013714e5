"""Applies complete lists: at the start, and after each restart of a watch.

Nodes first, then VMs, then pods: a claim is capped by its node and sized by its VM.
"""

from __future__ import annotations

from collections.abc import Collection

from protocol.units import Instant
from scheduler_plugin.ledger import binding, effective_facts, migration_reservations
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.accounts.pod_requests import MIN_REQUESTS, PodRequests
from scheduler_plugin.ledger.events import Listed
from scheduler_plugin.ledger.facts import NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.outcomes import Effect, Effects, ReadPod
from scheduler_plugin.ledger.state import LedgerState


def apply_lists(state: LedgerState, lists: Listed, now: Instant) -> Effects:
    """Store complete lists. Return reads of missing objects that may be newer than their list."""
    is_first = not state.is_ready
    _list_nodes(state, lists.nodes)
    _list_vms(state, effective_facts.at_rebuild(lists.vms, lists.nodes, lists.pods) if is_first else lists.vms, now)
    reads = _list_pods(state, lists.pods)
    reads += migration_reservations.relist(state, lists.migrations, now)
    if is_first:
        migration_reservations.cap_left_claims(state)
        _rebuilt(state, now)
    state.expire(now)
    state.is_ready = True
    return tuple(reads)


def _list_nodes(state: LedgerState, nodes: Collection[NodeFacts]) -> None:
    for node in nodes:
        observe_node(state, node)
    for name in state.nodes.keys() - {node.name for node in nodes}:
        state.update_node(name, None)


def observe_node(state: LedgerState, node: NodeFacts) -> None:
    """Record a node from a watch or list."""
    account = state.nodes.get(node.name)
    # A node that has claims and was unknown has not bounded its VMs yet.
    is_new = account is not None and account.total_or_none is None
    state.update_node(node.name, node)
    if is_new:
        effective_facts.bound_by_node(state, node.name)


def observe_vm(state: LedgerState, vm: VmFacts, now: Instant) -> None:
    """Record a VM from a watch or list."""
    facts = effective_facts.effective_facts(state, vm, state.accounts.find(vm.name, vm.uid))
    state.update_vm(facts, now, at_rebuild=False)


def _list_vms(state: LedgerState, vms: Collection[VmFacts], now: Instant) -> None:
    for vm in vms:
        if state.is_ready:
            observe_vm(state, vm, now)
        else:
            state.update_vm(vm, now, at_rebuild=True)  # the list was judged as a whole
    for name in state.vms.keys() - {vm.name for vm in vms}:
        state.remove_vm(name)


def _list_pods(state: LedgerState, pods: Collection[PodFacts]) -> list[Effect]:
    """Store the pods. Return reads of missing pods that may be newer than the list."""
    reads: list[Effect] = []
    for pod in pods:
        binding.observe_pod(state, pod, at_rebuild=not state.is_ready)
    uids = {pod.uid for pod in pods}
    for claim in [claim for uid, claim in state.claims.items() if uid not in uids]:
        # The watch had shown its bind before this list, so a missing pod is gone.
        if claim.state is ClaimState.BOUND:
            state.pod_gone(claim.pod.uid)
        elif claim.state is not ClaimState.INCOMING:
            reads.append(ReadPod(claim.pod.uid, claim.pod.name))
    state.waiting.listed(uids)
    state.sampled.listed(uids)
    return reads


def _rebuilt(state: LedgerState, now: Instant) -> None:
    """Finish the first complete list: a VM without pods has no agent."""
    for account in list(state.vms.values()):
        for claim in account.claims:
            runner, needed = claim.pod.runner, account.reserved.at_least(MIN_REQUESTS)
            if runner is not None and not runner.requested.within(needed):
                claim.resizes = PodRequests()
                # The previous process may have sent a write that lowers the requests.
                claim.resizes.send(needed, runner, now)
        if not account.claims and account.facts is not None:
            account.forget_agent()
            state.revoke(account)
        elif account.must_revoke:
            state.revoke(account)
