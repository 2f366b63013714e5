"""Filter, score and bind: room is reserved before the bind call (S4.10).

Rules:

- Bind and filter use the same ``verdict``. A reservation stays until the pod is certainly not bound.
- A repeated bind to the same node succeeds and reserves nothing more. A bind to another node is refused while the first
  one may still land.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from zlib import crc32

from msgspec.structs import replace

from protocol.units import Resources
from scheduler_plugin.constraints.model import Taint
from scheduler_plugin.ledger import outcomes
from scheduler_plugin.ledger.accounts.claims import Claim, ClaimState, claim_size, growth_of
from scheduler_plugin.ledger.effective_facts import observe_placed
from scheduler_plugin.ledger.events import BindEnded, WriteOutcome
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.migration_reservations import judge_target
from scheduler_plugin.ledger.moves import reservation_uid
from scheduler_plugin.ledger.state import LedgerState
from scheduler_plugin.placement.node_index import NodeIndex
from scheduler_plugin.placement.scoring import PodDemand
from scheduler_plugin.placement.verdict import FITS, Filtered, Refused, Room, group_by_verdict, shortage, verdict
from scheduler_plugin.texts import refusals

UNSETTLED = (ClaimState.TENTATIVE, ClaimState.UNKNOWN)


def claim_of(state: LedgerState, pod: PodFacts) -> Resources:
    """The pod's size on a node. Raises ``NotReadyError`` while its VM is unknown."""
    if not state.accounts.is_run_by(pod):
        return pod.requests
    account = state.accounts.of(pod)
    facts = None if account is None else account.facts
    if facts is None:
        raise outcomes.NotReadyError(refusals.VM_UNKNOWN.format(pod=pod))
    if facts.unreadable:
        raise outcomes.NotReadyError(refusals.VM_UNREADABLE.format(pod=pod, why=facts.unreadable))
    if pod.vm_uid and facts.pod not in (None, pod.name):
        raise outcomes.NotReadyError(refusals.VM_ELSEWHERE.format(pod=pod, runs_in=facts.pod))
    return claim_size(pod, account)


def node_index(state: LedgerState, pod: PodFacts) -> NodeIndex:
    """Verdicts and ranks of all nodes for the pod. Raises ``NotReadyError`` while its VM is unknown."""
    return state.node_indexes.of(_demand_of(state, pod))


def _demand_of(state: LedgerState, pod: PodFacts) -> PodDemand:
    claim = claim_of(state, pod)
    account = state.accounts.of(pod) if state.accounts.is_run_by(pod) else None
    return PodDemand(claim, growth_of(pod, account, claim))


def filter_pod(state: LedgerState, pod: PodFacts, names: list[str]) -> Filtered:
    """The nodes that fit the pod. A pod with a reservation fits its own node only."""
    claim = state.claims.get(pod.uid)
    if claim is None:
        demand = _demand_of(state, pod)
        if pod.migration is None:
            filtered = state.node_indexes.of(demand).filter(names)
        else:
            filtered = group_by_verdict(names, {name: judge_target(state, pod, pod.migration, name) for name in names})
        if filtered.fits:
            state.waiting.drop(pod.uid)
            state.sampled.forget(pod.uid)
        # Do not let a pod wait that was deleted during its scheduling cycle.
        elif not state.is_gone(pod.uid):
            account = state.accounts.of(pod) if state.accounts.is_run_by(pod) else None
            # kube-scheduler asked about a sample, so room on any other node may wake the pod too.
            candidates = state.rooms if state.sampled.is_sample(len(names), len(state.rooms)) else names
            state.waiting.add(pod, account, candidates if pod.migration is None else filtered.refused)
        return filtered
    elsewhere = refusals.RESERVED_ELSEWHERE.format(node=claim.node)
    others = {name: elsewhere for name in names if name != claim.node}
    return Filtered([name for name in names if name == claim.node], others, {})


def best(state: LedgerState, pod: PodFacts, candidates: Container[str], limit: int) -> list[str]:
    """The best ``limit`` of the ``candidates`` nodes that the pod fits; empty if ``filter_pod`` must decide."""
    # ``filter_pod`` decides for pods with a reservation and for targets of migrations.
    if pod.uid in state.claims or pod.migration is not None:
        return []
    demand = _demand_of(state, pod)
    # Each pod starts at another of the equal nodes, so that pods created together spread.
    taken, start = state.assumed.claimed(pod.uid), crc32(pod.uid.encode())
    best_nodes = state.node_indexes.of(demand).best(candidates, limit, taken, partial(_is_soft_tainted, state), start)
    state.assumed.settle(pod.uid)
    # The only node that kube-scheduler can bind it to.
    if len(best_nodes) == 1:
        state.assumed.assume(pod.uid, best_nodes[0], demand)
    if best_nodes:
        state.waiting.drop(pod.uid)
        state.sampled.forget(pod.uid)
    return best_nodes


def _taints(state: LedgerState, node: str) -> tuple[Taint, ...]:
    facts = state.nodes[node].facts
    return () if facts is None else facts.traits.taints


def _is_soft_tainted(state: LedgerState, node: str) -> bool:
    return any(taint.effect == "PreferNoSchedule" for taint in _taints(state, node))


def retry_elsewhere(state: LedgerState, pod: PodFacts, candidates: list[str]) -> outcomes.Effects:
    """Make kube-scheduler retry a pod if ``candidates``, which refused it, are a sample and another node has room."""
    if pod.uid in state.claims or state.is_gone(pod.uid):
        return ()
    elsewhere = None
    # Otherwise kube-scheduler has tried all nodes.
    if state.sampled.is_sample(len(candidates), len(state.rooms)):
        elsewhere = next(iter(node_index(state, pod).fitting().difference(candidates)), None)
    if elsewhere is None:
        state.sampled.forget(pod.uid)  # it may preempt now
        return ()
    is_retried = state.sampled.should_retry(pod.uid, len(candidates), len(state.rooms))
    return (outcomes.RoomFreed(elsewhere),) if is_retried else ()


def add_unschedulable(state: LedgerState, pods: Iterable[PodFacts]) -> list[outcomes.Effect]:
    """Add the unschedulable pods among ``pods`` to the waiting ones; return wake-ups for those that fit now."""
    everywhere, calls = frozenset(state.rooms), dict[str, None]()
    for pod in pods:
        is_ours = pod.scheduler == state.scheduler and not (pod.uid in state.claims or state.is_gone(pod.uid))
        if not (is_ours and pod.unschedulable and pod.node is None):
            continue
        state.waiting.add(pod, state.accounts.of(pod) if state.accounts.is_run_by(pod) else None, everywhere)
        node = _node_to_wake(state, pod)
        if node is not None:
            calls[node] = None
            state.waiting.woken(pod.uid)
    return [outcomes.RoomFreed(node) for node in calls]


def _node_to_wake(state: LedgerState, pod: PodFacts) -> str | None:
    """A node that the pod may fit now, preferably without taints; None if none."""
    try:
        names = state.rooms if pod.migration is not None else node_index(state, pod).fitting()
    except outcomes.NotReadyError:  # kube-scheduler retries until it is known
        names = state.rooms
    return next((name for name in names if not _taints(state, name)), next(iter(names), None))


def reserve(state: LedgerState, pod: PodFacts, node: str) -> outcomes.Reservation:
    """Reserve room for a bind; a migration's reservation passes to its target pod.

    Raises ``NotReadyError`` and ``UnknownPodError``.
    """
    state.require_ready()
    state.assumed.settle(pod.uid)
    if state.is_gone(pod.uid):
        raise outcomes.UnknownPodError(refusals.POD_OVER.format(pod=pod.name))
    claim = state.claims.get(pod.uid)
    if claim is not None:
        return _repeat_bind(claim, node)
    needed = claim_of(state, pod)
    room = state.rooms.get(node)
    judged = verdict(room, needed) if pod.migration is None else judge_target(state, pod, pod.migration, node)
    if judged is not FITS or room is None:
        return outcomes.Reservation(judged, "" if room is None else shortage(room, needed))
    # The target pod replaces the migration's reservation: never two for one VM on a node.
    state.close_claim(reservation_uid(pod.migration))
    state.open_claim(pod, node, ClaimState.TENTATIVE).attempts = 1
    state.waiting.forget(pod.uid)
    state.sampled.forget(pod.uid)
    return outcomes.Reservation(FITS, needs_bind=True)


def _repeat_bind(claim: Claim, node: str) -> outcomes.Reservation:
    if claim.node != node:
        where = refusals.RESERVED_ELSEWHERE.format(node=claim.node)
        return outcomes.Reservation(Refused(where), f"{where} ({claim.state.value})")
    # kube-scheduler may repeat a bind if it lost the response.
    if claim.state not in UNSETTLED:
        return outcomes.Reservation(FITS)
    claim.attempts += 1
    return outcomes.Reservation(FITS, needs_bind=True)


def bind_ended(state: LedgerState, event: BindEnded) -> outcomes.Effects:
    """Record the outcome of a bind call."""
    claim = _claim_of_ended_bind(state, event.uid, event.node)
    if claim is None:
        return ()
    if event.outcome is WriteOutcome.UNKNOWN:
        # Keep the reservation until the pod is read.
        claim.state = ClaimState.UNKNOWN
        return (outcomes.ReadPod(event.uid, claim.pod.name),)
    if event.outcome is WriteOutcome.DONE:
        claim.state, claim.attempts = ClaimState.CONFIRMED, 0
    # Release only after the last of all calls in flight is certainly refused. After an unknown outcome only a fresh
    # read of the pod may release, and one sent before this refusal does not count.
    elif not claim.attempts:
        if claim.state is ClaimState.UNKNOWN:
            return (outcomes.ReadPod(event.uid, claim.pod.name),)
        state.close_claim(event.uid)
    return ()


def _claim_of_ended_bind(state: LedgerState, uid: str, node: str) -> Claim | None:
    """The claim of a bind call that ended; None if its end no longer matters."""
    claim = state.claims.get(uid)
    if claim is None or claim.node != node or claim.state not in UNSETTLED:
        return None
    claim.attempts = max(0, claim.attempts - 1)
    return claim


def pod_read(state: LedgerState, uid: str, pod: PodFacts | None) -> None:
    """Record the result of ``ReadPod``; None if the pod is gone."""
    if pod is None:
        state.pod_gone(uid)
        return
    claim = state.claims.get(uid)
    if pod.node is None and claim is not None and claim.state is ClaimState.UNKNOWN and not claim.attempts:
        state.close_claim(uid)
    else:
        observe_pod(state, pod)


def observe_pod(state: LedgerState, pod: PodFacts, *, at_rebuild: bool = False) -> None:
    """Record a pod from a watch or list."""
    if state.is_gone(pod.uid):
        return
    if pod.finished:
        state.pod_gone(pod.uid)
        return
    if pod.node is None:
        state.waiting.observed(pod.uid)
        if pod.migration is not None:
            state.migrations.set_waiting_target(pod.migration, pod)
        _observe_unbound(state, pod)
        return
    if pod.migration is not None:
        state.migrations.set_waiting_target(pod.migration, None)
    state.waiting.forget(pod.uid)
    claim = state.claims.get(pod.uid)
    if claim is not None and _runs_another_vm(claim, pod):
        state.close_claim(pod.uid)
        claim = None
    if claim is None:
        claim = state.open_claim(pod, pod.node, ClaimState.BOUND)
        # Another scheduler placed the pod, or this one before its restart.
        observe_placed(state, claim, at_rebuild=at_rebuild)
        state.mark_left_claims(claim.vm)
        return
    if claim.node != pod.node:
        state.move_claim(claim, pod.node)
    claim.state, claim.attempts = ClaimState.BOUND, 0
    _update_pod(state, claim, pod)
    state.accounts.enter(claim)
    state.recount(pod.vm)
    state.migrations.mark_dirty(pod.vm)
    state.change(claim)
    state.mark_left_claims(claim.vm)


def _observe_unbound(state: LedgerState, pod: PodFacts) -> None:
    """Record a pod without a node. While its bind is in flight, its requests may have been raised."""
    claim = state.claims.get(pod.uid)
    # A pod loses its node only if etcd was restored. Then the bind is in doubt, and is sent again when kube-scheduler
    # asks.
    if claim is not None and claim.state is ClaimState.BOUND:
        state.mark_uncertain(claim)
    elif claim is not None and claim.state is ClaimState.TENTATIVE and not _runs_another_vm(claim, pod):
        _update_pod(state, claim, pod)
        state.change(claim)


def _update_pod(state: LedgerState, claim: Claim, pod: PodFacts) -> None:
    """Store newer facts of the claim's pod; the caller updates the sums."""
    resizes, before = claim.resizes, claim.pod.runner
    claim.pod = pod
    state.nodes[claim.node].pods_changed()
    if resizes is not None and pod.runner is not None:
        if before is not None and resizes.is_unanswered(before):
            # An agent may be waiting for the kubelet to apply these requests.
            state.orders.append(outcomes.PodRequestsChanged(pod.uid))
        resizes.observe(pod.runner)


def _runs_another_vm(claim: Claim, pod: PodFacts) -> bool:
    if claim.pod.vm != pod.vm:
        return True
    return claim.vm is not None and bool(pod.vm_uid) and claim.vm.uid not in ("", pod.vm_uid)


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A node, and the UIDs of the pods that would be evicted from it."""

    node: str
    victims: Set[str]


def nodes_after_preemption(
    rooms: Mapping[str, Room], claims: Mapping[str, Claim], needed: Resources, candidates: Iterable[PreemptionCandidate]
) -> list[str]:
    """The candidate nodes that would fit ``needed`` without their victims, in their order."""
    return [
        candidate.node
        for candidate in candidates
        if verdict(_without(rooms.get(candidate.node), claims, candidate), needed) is FITS
    ]


def _without(room: Room | None, claims: Mapping[str, Claim], candidate: PreemptionCandidate) -> Room | None:
    if room is None:
        return None
    leaving = Resources.sum(
        # kube-scheduler may send pods that have moved or ended.
        claims[uid].reserved
        for uid in candidate.victims
        if uid in claims and claims[uid].node == candidate.node
    )
    reserved = room.reserved.minus_or_zero(leaving)
    is_withheld = room.unreserved != room.total.minus_or_zero(
        room.reserved
    )  # a claim without an upper bound leaves nothing free
    free = room.free if is_withheld else room.total.minus_or_zero(reserved).minus_or_zero(room.for_waking)
    return replace(room, reserved=reserved, free=free)
