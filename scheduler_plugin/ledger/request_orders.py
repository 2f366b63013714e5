"""Pod requests follow the reservations of their VMs (B.10).

Rules:

- Raise requests before the permit; meanwhile the node's sum already includes the room.
- Lower requests after the reservation, which falls only once the guest has shrunk.
- If configured, write the CPU limit together with the requests, ``QEMU_CPU`` above them, so that a guest whose image
  ignores its size gets no more.
"""

from __future__ import annotations

from typing import Final

from protocol.messages import AgentRequest
from protocol.units import Instant, MilliCpu, Resources
from scheduler_plugin.ledger import binding
from scheduler_plugin.ledger.accounts.claims import Claim, ClaimState, VmAccount
from scheduler_plugin.ledger.accounts.pod_requests import LIMIT_RETRY, MIN_REQUESTS, PodRequests
from scheduler_plugin.ledger.events import RequestsFollow, ResizeRefused
from scheduler_plugin.ledger.facts import PodFacts, RunnerRequests
from scheduler_plugin.ledger.outcomes import ResizePod
from scheduler_plugin.ledger.permit_rule import bounded, ceiling
from scheduler_plugin.ledger.state import LedgerState

QEMU_CPU: Final = MilliCpu(500)
"""CPU for QEMU's own threads (devices, live migration), in addition to vCPUs."""


def set_following(state: LedgerState, event: RequestsFollow) -> None:
    """Apply the setting for requests and limits."""
    follows, can = event.follows, event.can
    state.follows_requests, state.returns_requests = follows and can, not follows
    state.limits_cpu = event.limits_cpu and follows and can


def _is_writing(state: LedgerState) -> bool:
    return state.follows_requests or state.returns_requests


def pods_to_resize(state: LedgerState) -> list[str]:
    """UIDs of all pods with wrong requests.

    They should be the VM's reservation or, if requests do not follow, those that the pod was created with.
    """
    if not _is_writing(state):
        return []
    is_wrong = _is_wrong if state.follows_requests else _is_unrestored
    return [claim.pod.uid for account in state.accounts for claim in account.claims if is_wrong(state, claim, account)]


def _is_wrong(state: LedgerState, claim: Claim, account: VmAccount) -> bool:
    runner = claim.pod.runner
    if runner is None or not _is_followed(claim):
        return False
    if runner.requested not in (account.reserved, _capped_to_node(state, claim, account.reserved)):
        return True
    return _lacks_limit(state, claim, runner)


def _is_unrestored(state: LedgerState, claim: Claim, account: VmAccount) -> bool:
    runner = claim.pod.runner
    is_limited = runner is not None and _is_followed(claim) and _lacks_limit(state, claim, runner)
    return is_limited or _has_leftover_raise(claim, account)


def _lacks_limit(state: LedgerState, claim: Claim, runner: RunnerRequests) -> bool:
    limit = _cpu_limit(state, claim, runner, runner.requested)
    return limit is not None and limit != runner.cpu_limit


def _cpu_limit(state: LedgerState, claim: Claim, runner: RunnerRequests, size: Resources) -> MilliCpu | None:
    """CPU limit for requests of ``size``; None if limits stay as they are."""
    if not state.limits_cpu and runner.cpu_limit is None:
        return None
    facts = None if claim.vm is None else claim.vm.facts
    # A limit cannot be removed, so an unused one is raised beyond what the VM can use.
    maximum = size.cpu if state.limits_cpu or facts is None else max(size.cpu, facts.maximum.cpu)
    return maximum + QEMU_CPU


def needs_raise(state: LedgerState, uid: str, request: AgentRequest) -> bool:
    """Return True if the pod's requests do not cover the agent's request, and could be raised."""
    claim = state.claims.get(uid)
    if claim is None or not state.follows_requests:
        return False
    secured, account = claim.secured, claim.vm
    if secured is None or account is None or not account.has_agent:
        return False
    # A sleeping VM has to wake before it moves.
    if claim.is_frozen and not account.sleeps:
        return False
    return not bounded(account, request.resources).within(account.in_use_or_held.at_least(secured))


def raise_requests(state: LedgerState, uid: str, request: AgentRequest, now: Instant) -> ResizePod | None:
    """The resize needed before the agent can get its request; None if none is needed or possible now.

    The node's sum includes the room from now on.
    """
    if not needs_raise(state, uid, request):
        return None
    claim = state.claims[uid]
    account, runner, policy = claim.vm, claim.pod.runner, state.nodes[claim.node].policy
    if account is None or runner is None or policy is None or not _may_grow(account, claim):
        return None
    resizes = _resizes(claim)
    bound = bounded(account, request.resources)
    by_room = bound.at_most(ceiling(state, account, claim, bound, now))
    base = runner.requested
    if runner.problem:
        # The kubelet ignores other resources of a pod while it refuses one, so reset the refused one to its allocation.
        base = resizes.refused_by_kubelet(runner, now).of(runner.held, base)
    wanted = _capped_to_node(state, claim, by_room.at_least(account.reserved))
    # Keep requests raised without a permit for a while: the kubelet may be slow, and the agent asks again.
    resizes.hold(wanted, now)
    size = base.at_least(wanted)
    possible = resizes.possible(base, size, now)
    if possible.within(runner.requested):
        # A quota or admission rule refuses this size; it may allow a part.
        possible = resizes.raising.halfway(base, size, policy.compute_unit, now)
    if possible.within(runner.requested) and (runner.problem or size != possible or not resizes.may_land):
        return None
    return _order(state, claim, runner, possible, now)


def lacks_requests(state: LedgerState, uid: str) -> bool:
    """Return True if the pod's requests do not cover its VM's reservation."""
    claim = state.claims.get(uid)
    runner = None if claim is None or not state.follows_requests else claim.pod.runner
    if claim is None or claim.vm is None or runner is None or not _is_followed(claim):
        return False
    return not _capped_to_node(state, claim, claim.vm.reserved).within(runner.requested)


def requests_due(state: LedgerState, uid: str, now: Instant) -> ResizePod | None:
    """The resize that corrects the pod's requests (``pods_to_resize``); None if none is needed or possible now."""
    claim = state.claims.get(uid)
    if claim is None or not _is_writing(state) or not _is_followed(claim):
        return None
    account, runner = claim.vm, claim.pod.runner
    if account is None or account.facts is None or runner is None:
        return None
    needed = (
        _capped_to_node(state, claim, account.reserved)
        if state.follows_requests
        else _original_requests(runner, account)
    )
    size = _target_requests(claim, runner, needed, account.facts.first_requests, now)
    resizes = _resizes(claim)
    if size == runner.requested:
        # A webhook may drop the limit every time.
        if now - resizes.limited_at < LIMIT_RETRY or not _lacks_limit(state, claim, runner):
            return None
        resizes.limited_at = now
    return _order(state, claim, runner, size, now)


def requests_of_waiting(state: LedgerState, pod: PodFacts) -> tuple[ResizePod, ...]:
    """Resizes of a pod that waits for a node, in the order to try: to the VM's size, then without lowering any
    resource. Empty if the pod already has that size.

    Raises ``NotReadyError`` while its VM is unknown.
    """
    runner = pod.runner
    if not state.follows_requests or runner is None or pod.node is not None or pod.uid in state.claims:
        return ()
    # Only for its error.
    binding.claim_of(state, pod)
    account = state.accounts.of(pod) if state.accounts.is_run_by(pod) else None
    needed = MIN_REQUESTS if account is None else account.reserved.at_least(MIN_REQUESTS)
    if account is None or needed == runner.requested:
        return ()
    # Exactly the VM's size, so that preemption and cluster autoscalers see it. An admission rule may refuse to lower
    # requests, so the second only raises.
    sizes = dict.fromkeys((needed, needed.at_least(runner.requested)))
    return tuple(ResizePod(pod.uid, pod.name, size, runner.version) for size in sizes if size != runner.requested)


def resize_refused(state: LedgerState, event: ResizeRefused, now: Instant) -> None:
    """Record that the API server certainly did not make a write."""
    order, claim = event.order, state.claims.get(event.order.uid)
    if claim is None or claim.resizes is None:
        return
    current = order.size if claim.pod.runner is None else claim.pod.runner.requested
    claim.resizes.refused(order.size, current, event.why, now, is_of_size=event.is_of_size)
    if event.is_final and claim.state is ClaimState.BOUND:
        claim.resizes.exempt(event.why, now)
    state.change(claim)


def resize_unanswered(state: LedgerState, order: ResizePod, why: str) -> None:
    """Record that the outcome of a write is unknown because of ``why``."""
    claim = state.claims.get(order.uid)
    if claim is not None and claim.resizes is not None:
        claim.resizes.no_answer = why


def _order(state: LedgerState, claim: Claim, runner: RunnerRequests, size: Resources, now: Instant) -> ResizePod:
    resizes = _resizes(claim)
    if not size.within(runner.requested):
        resizes.goal = size
    resizes.send(size, runner, now)
    state.change(claim)
    # Only a write that lowers something reverts a resize.
    reverts = runner.verdict if not runner.requested.within(size) else ""
    limit = _cpu_limit(state, claim, runner, size)
    return ResizePod(claim.pod.uid, claim.pod.name, size, runner.version, reverts, limit)


def _capped_to_node(state: LedgerState, claim: Claim, size: Resources) -> Resources:
    """``size`` capped to the pod's empty node; the present request of a resource that the node lacks."""
    facts, runner, size = state.nodes[claim.node].facts, claim.pod.runner, size.at_least(MIN_REQUESTS)
    if facts is None or runner is None:
        return size
    # The kubelet refuses requests above its allocatable as Infeasible forever. Zero requests would change the QoS
    # class.
    room = facts.allocatable.minus_or_zero(claim.pod.overhead)
    return size.at_most(Resources(room.cpu or runner.requested.cpu, room.mem or runner.requested.mem))


def _is_followed(claim: Claim) -> bool:
    return claim.state is not ClaimState.INCOMING and claim.secured is not None


def _has_leftover_raise(claim: Claim, account: VmAccount) -> bool:
    runner = claim.pod.runner
    return (
        runner is not None
        and runner.by_us.any
        and _original_requests(runner, account) != runner.requested
        and _is_followed(claim)
    )


def _original_requests(runner: RunnerRequests, account: VmAccount) -> Resources:
    """The requests that the pod was created with; its present ones if unknown."""
    first = None if account.facts is None else account.facts.first_requests
    return runner.requested if first is None or not first.any else runner.without_our_raise(first)


def _may_grow(account: VmAccount, claim: Claim) -> bool:
    """Return True if the VM is readable and runs in the claim's pod, so that its agent gets a response."""
    facts = account.facts
    return facts is not None and not facts.unreadable and facts.pod in (None, claim.pod.name)


def _resizes(claim: Claim) -> PodRequests:
    if claim.resizes is None:
        claim.resizes = PodRequests()
    return claim.resizes


def _target_requests(
    claim: Claim, runner: RunnerRequests, needed: Resources, first: Resources | None, now: Instant
) -> Resources:
    """The requests that the pod should have now. ``first`` are those it was created with, if known."""
    if runner.problem:
        return _target_requests_after_refusal(claim, runner, needed, now)
    return _resizes(claim).possible(
        runner.requested, _requests_to_keep(claim, runner.requested, needed, now), now, first
    )


def _target_requests_after_refusal(claim: Claim, runner: RunnerRequests, needed: Resources, now: Instant) -> Resources:
    """Like ``_target_requests``, while the kubelet refuses some of the requests."""
    resizes = _resizes(claim)
    refused = resizes.refused_by_kubelet(runner, now)
    rest = resizes.possible(runner.requested, _requests_to_keep(claim, runner.secured, needed, now), now)
    others = refused.of(runner.held, rest)
    if others != runner.held:
        return others
    # A refused resize blocks others on the node, so revert what no reservation needs.
    less = runner.requested if runner.requested.within(needed) else needed.at_least(runner.secured)
    return resizes.lowering.parts_at(now).of(runner.held, less)


def _requests_to_keep(claim: Claim, current: Resources, needed: Resources, now: Instant) -> Resources:
    """``needed``, plus the part of ``current`` to keep for a while: all of it during a migration."""
    return current.at_least(needed) if claim.is_migrating else _resizes(claim).requests_to_keep(current, needed, now)
