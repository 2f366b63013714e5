"""The only interface to the scheduler's state: events in, decisions and effects out.

Rules:

- One writer calls ``apply``, one event at a time. Accounts are consistent after each, so a lost effect only delays.
  Nothing here reads a clock: ``now`` is an argument and never goes back.
- API facts may arrive late, twice or never. The newest counts, and nothing is freed twice.
- A process starts each term with a new ``Ledger`` and fresh lists, because a standby does not know which responses its
  predecessor sent.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, assert_never, overload

from protocol.guest.sleep import ASLEEP, WAKING
from protocol.messages import AgentRequest, ObjectName
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger import (
    binding,
    events,
    listing,
    migration_reservations,
    outcomes,
    permit_rule,
    request_orders,
)
from scheduler_plugin.ledger.accounts.claims import Claim, VmAccount
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.effective_facts import reevaluate_all
from scheduler_plugin.ledger.explain import ClaimExplanation, explain
from scheduler_plugin.ledger.facts import WITHOUT_GUEST, PodFacts
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.ledger.state import LedgerState
from scheduler_plugin.placement.verdict import Filtered, Room

SILENT_AFTER: Final = Seconds(60.0)
"""An agent without a request for this long counts as silent; agents send one at least every 15 s."""


class Ledger:
    """Reservations on every node, and every VM's permit. Only ``apply`` changes them.

    ``rooms`` has the known nodes, ``nodes`` the accounts of all. ``claims`` are keyed by pod UID. ``migrations`` are
    all that were ordered or exist in the API. VMs may have to leave the ``strained`` nodes (S4.8), and the
    ``crowded`` ones, where a VM could not grow to its bound (B.17).
    """

    def __init__(self) -> None:
        state = self._state = LedgerState()
        self.rooms: Mapping[str, Room] = state.rooms
        self.nodes: Mapping[str, NodeAccount] = state.nodes
        self.claims: Mapping[str, Claim] = state.claims
        self.vms: Mapping[ObjectName, VmAccount] = state.vms
        self.migrations: Mapping[ObjectName, Migration] = state.migrations.named
        self.strained: Set[str] = state.strained
        self.crowded: Set[str] = state.crowded

    @overload
    def apply(self, event: events.PermitRequested, now: Instant) -> outcomes.PermitDecision: ...
    @overload
    def apply(self, event: events.BindRequested | events.MoveRequested, now: Instant) -> outcomes.Reservation: ...
    @overload
    def apply(self, event: events.RaiseRequested | events.ResizeDue, now: Instant) -> outcomes.ResizeDecision: ...
    @overload
    def apply(self, event: events.PermitWritten | events.Fact | events.Report, now: Instant) -> outcomes.Effects: ...

    def apply(  # noqa: PLR0911, PLR0912 - one case for each event
        self, event: events.Event, now: Instant
    ) -> outcomes.PermitDecision | outcomes.Reservation | outcomes.ResizeDecision | outcomes.Effects:
        """Record ``event`` and return its decision or effects. Carry out the effects and report their outcomes.

        Events with a decision may raise ``LedgerError``; then nothing has changed, except that ``OtherAgentError``
        records what the refused agent reports to hold.
        """
        state = self._state
        match event:
            case events.PermitRequested():
                return permit_rule.decide(state, event, now)
            case events.BindRequested(pod, node):
                return replace(binding.reserve(state, pod, node), effects=self._finish(outside=False))
            case events.MoveRequested(move, name):
                reservation = migration_reservations.reserve_move(state, move, name, now)
                return replace(reservation, effects=(*reservation.effects, *self._finish(outside=False)))
            case events.RaiseRequested(uid, request):
                order = request_orders.raise_requests(state, uid, request, now)
                return outcomes.ResizeDecision(order, self._finish(outside=False))
            case events.ResizeDue(uid):
                order = request_orders.requests_due(state, uid, now)
                return outcomes.ResizeDecision(order, self._finish(outside=False))
            case events.PermitWritten():
                permit_rule.permit_written(state, event)
            case events.PodSeen(pod):
                binding.observe_pod(state, pod)
            case events.PodGone(uid):
                state.pod_gone(uid)
            case events.PodRead(uid, read):
                binding.pod_read(state, uid, read)
            case events.VmSeen(vm):
                listing.observe_vm(state, vm, now)
            case events.VmGone(name):
                state.remove_vm(name)
            case events.NodeSeen(facts):
                listing.observe_node(state, facts)
            case events.NodeGone(node):
                state.update_node(node, None)
            case events.MigrationSeen(migration):
                migration_reservations.observe_migration(state, migration, now)
            case events.MigrationGone(name):
                migration_reservations.remove_migration(state, name)
            case events.Listed():
                return self._listed(event, now)
            case events.TimePassed():
                state.expire(now)
                reevaluate_all(state)
            case events.StoreRestored():
                state.forget_versions()
                return ()  # reads that it ordered wait for the lists
            case _:
                return (*_reported(state, event, now), *self._finish(outside=False))
        return self._finish(outside=True)

    def _listed(self, lists: events.Listed, now: Instant) -> outcomes.Effects:
        is_first = not self.is_ready
        reads = listing.apply_lists(self._state, lists, now)
        effects = (*reads, *self._finish(outside=True))
        # Pods refused by the previous process wait for room too: kube-scheduler does not retry them on its own.
        return (*effects, *binding.add_unschedulable(self._state, lists.pods)) if is_first else effects

    def _finish(self, *, outside: bool) -> outcomes.Effects:
        """End a step. ``outside``: caused by facts from outside, which may overcommit a node."""
        # Before ``finish`` publishes the rooms, which must contain the reservations of this step.
        if self._state.migrations.dirty:
            migration_reservations.settle(self._state)
        return self._state.finish(outside=outside)

    # Queries. None changes an account; ``filter`` and ``best`` record which pods wait and which were assumed.

    @property
    def is_ready(self) -> bool:
        """False until complete lists have been taken in."""
        return self._state.is_ready

    def migrations_of(self, vm: ObjectName) -> Sequence[Migration]:
        """The VM's migrations, oldest first."""
        return self._state.migrations.of(vm)

    def uid_of(self, pod: ObjectName) -> str | None:
        """The UID of the pod with this name, if it has a claim."""
        return self._state.uids.get(pod)

    @property
    def waiting(self) -> int:
        """The number of pods that wait for room."""
        return len(self._state.waiting)

    @property
    def sleeping_vms(self) -> tuple[int, int]:
        """Numbers of sleeping and of waking VMs with an agent."""
        phases = [vm.facts.phase for vm in self.vms.values() if vm.facts is not None and vm.sleeps]
        return phases.count(ASLEEP), phases.count(WAKING)

    def unattended_wakes(self, now: Instant) -> int:
        """Number of waking VMs with a silent agent. Known to the leader only."""
        waking = (vm for vm in self.vms.values() if vm.facts is not None and vm.facts.phase == WAKING)
        return sum(self.is_silent(vm, now) for vm in waking)

    def scaled_vms(self, now: Instant) -> tuple[int, int]:
        """Numbers of VMs with a guest and an agent: with an active agent, and with a silent one."""
        is_heard = [now - vm.last_message_at <= SILENT_AFTER for vm in self.vms.values() if self._is_scaled(vm)]
        return is_heard.count(True), is_heard.count(False)

    def is_silent(self, vm: VmAccount, now: Instant) -> bool:
        """Return True if an agent should size the VM and is silent. Known to the leader only."""
        return self._is_scaled(vm) and now - vm.last_message_at > SILENT_AFTER

    def _is_scaled(self, vm: VmAccount) -> bool:
        """Return True if one of our agents should size the VM."""
        if vm.facts is None or not vm.facts.has_agent or vm.facts.phase in WITHOUT_GUEST:
            return False
        # Agents of another scheduler's VMs talk to that one. Agents of databases in pods always talk to us.
        return any(vm.facts.is_pod or claim.pod.scheduler == self._state.scheduler for claim in vm.claims)

    def explain(self, uid: str, now: Instant) -> ClaimExplanation:
        """Explain one pod's claim. Raises ``UnknownPodError``."""
        claim = permit_rule.claim_of(self._state, uid)
        return explain(claim, self.nodes[claim.node], now, follows_requests=self._state.follows_requests)

    # Questions of kube-scheduler (S4.10) ------------------------------------------------------------------------------

    def filter(self, pod: PodFacts, names: list[str]) -> Filtered:
        """The nodes that fit the pod; it waits for room if none does. Raises ``NotReadyError``."""
        self._state.require_ready()
        return binding.filter_pod(self._state, pod, names)

    def best(self, pod: PodFacts, candidates: Container[str], limit: int) -> list[str]:
        """The best ``limit`` of the ``candidates`` nodes that the pod fits; a single one is assumed.

        Empty if ``filter`` must decide: the pod fits nowhere, has a reservation, or is a migration's target. Raises
        ``NotReadyError``.
        """
        self._state.require_ready()
        return binding.best(self._state, pod, candidates, limit)

    def scores(self, pod: PodFacts, names: list[str]) -> list[int]:
        """The pod's score on each of ``names``, 0-10. Raises ``NotReadyError``."""
        self._state.require_ready()
        return binding.node_index(self._state, pod).scores(names)

    def claim_of(self, pod: PodFacts) -> Resources:
        """The pod's size. Raises ``NotReadyError`` while its VM or the cluster is unknown."""
        self._state.require_ready()
        return binding.claim_of(self._state, pod)

    def is_retried(self, uid: str) -> bool:
        """Return True if kube-scheduler will retry the pod on other nodes, so no preemption is needed yet."""
        return self._state.sampled.is_retried(uid)

    def schedules(self, pod: PodFacts) -> bool:
        """Return True if the pod belongs to the scheduler that the extender serves."""
        return pod.scheduler == self._state.scheduler

    # Queries of the components that write to the API server -----------------------------------------------------------

    def is_write_needed(self, order: outcomes.PersistPermit) -> bool:
        """Return True if the write is still needed.

        A permit is taken back only from a VM without an agent. A permit by which a VM is waking is not lowered.
        """
        account = self.vms.get(order.vm)
        # The VM may be waking by the permit that this write lowers.
        if account is not None and account.uid == order.uid and not account.waking_permit.within(order.permit):
            return False
        # Autoscaling may have been switched on again while the write was queued.
        return not order.revokes or account is None or not (account.has_agent and account.claims)

    @property
    def follows_requests(self) -> bool:
        """True if a permit must not exceed the pod's requests."""
        return self._state.follows_requests

    def pods_to_resize(self) -> list[str]:
        """UIDs of all pods with wrong requests."""
        return request_orders.pods_to_resize(self._state)

    def needs_raise(self, uid: str, request: AgentRequest) -> bool:
        """Return True if the pod's requests do not cover the agent's request, and could be raised."""
        return request_orders.needs_raise(self._state, uid, request)

    def awaits_kubelet(self, uid: str) -> bool:
        """Return True if the kubelet has yet to allocate the pod's requests, and has not refused them."""
        claim = self.claims.get(uid)
        runner = None if claim is None else claim.pod.runner
        if claim is None or runner is None or runner.problem or claim.resizes is None or claim.resizes.may_land:
            return False
        return claim.resizes.is_unanswered(runner)

    def lacks_requests(self, uid: str) -> bool:
        """Return True if the pod's requests do not cover its VM's reservation."""
        return request_orders.lacks_requests(self._state, uid)

    def requests_of_waiting(self, pod: PodFacts) -> tuple[outcomes.ResizePod, ...]:
        """Resizes of a pod that waits for a node, in the order to try them.

        Raises ``NotReadyError`` while its VM is unknown.
        """
        return request_orders.requests_of_waiting(self._state, pod)


def _reported(state: LedgerState, event: events.Report, now: Instant) -> outcomes.Effects:
    match event:
        case events.BindEnded():
            return binding.bind_ended(state, event)
        case events.PodRefused(pod, nodes):
            return binding.retry_elsewhere(state, pod, nodes)
        case events.MigrationCreateEnded(migration, outcome):
            return migration_reservations.create_ended(state, migration, outcome)
        case events.ResizeRefused():
            request_orders.resize_refused(state, event, now)
        case events.ResizeOutcomeUnknown(order, why):
            request_orders.resize_unanswered(state, order, why)
        case events.SettingsRead(ranking):
            state.node_indexes.rank_by(ranking)
            state.scheduler, state.sampled.percent = event.scheduler, event.percent_of_nodes
        case events.HeadroomSeen(is_lacking):
            state.lacks_headroom = is_lacking
        case events.RequestsFollow():
            request_orders.set_following(state, event)
        case _:
            assert_never(event)
    return ()
