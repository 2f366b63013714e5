"""The only entry to the scheduler's state: events go in, decisions and effects come out.

Rules that hold here:

- One writer calls ``apply``, one event at a time; each leaves the accounts consistent, so an effect that is never
  carried out only delays. Nothing here reads a clock: ``now`` is an argument and never goes back.
- Everything about the API may arrive late, twice or never. What matters is the newest fact, and nothing is freed twice.
- A process that begins to decide, after a start or a fail-over, does so with a new ``Ledger`` and fresh lists: one that
  only watched does not know what the one before it has answered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never, overload

from protocol.units import Instant
from scheduler_plugin.ledger import binding, listing, migration_reservations, permit_rule, request_orders
from scheduler_plugin.ledger.believed import believed, judge_all_again
from scheduler_plugin.ledger.events import (
    AgentAsked,
    BindEnded,
    Event,
    Fact,
    Listed,
    MigrationGone,
    MigrationSeen,
    MoveAnswered,
    MoveWanted,
    NodeGone,
    NodeSeen,
    PermitWritten,
    PodGone,
    PodRead,
    PodRefused,
    PodSeen,
    PodToBind,
    RaiseWanted,
    Report,
    RequestsFollow,
    ResizeDue,
    ResizeRefused,
    ResizeUnanswered,
    SettingsRead,
    TimePassed,
    VersionsForgotten,
    VmGone,
    VmSeen,
)
from scheduler_plugin.ledger.outcomes import Effects, MoveReservation, PermitDecision, Reservation, ResizeDecision
from scheduler_plugin.ledger.state import LedgerState
from scheduler_plugin.ledger.views import LedgerViews


class Ledger(LedgerViews):
    """The ledger: reservations on every node, and every VM's permit."""

    @overload
    def apply(self, event: AgentAsked, now: Instant) -> PermitDecision: ...
    @overload
    def apply(self, event: PodToBind, now: Instant) -> Reservation: ...
    @overload
    def apply(self, event: MoveWanted, now: Instant) -> MoveReservation: ...
    @overload
    def apply(self, event: RaiseWanted | ResizeDue, now: Instant) -> ResizeDecision: ...
    @overload
    def apply(self, event: PermitWritten | Fact | Report, now: Instant) -> Effects: ...

    def apply(  # noqa: PLR0911, PLR0912 - one case for each event
        self, event: Event, now: Instant
    ) -> PermitDecision | Reservation | MoveReservation | ResizeDecision | Effects:
        """Book ``event``, and decide what it asks. Carry out the effects, then report what became of them.

        Events that ask for a decision may raise ``LedgerError``; then nothing has changed. ``OtherAgentError`` alone
        keeps in mind what the agent that is refused says that it holds.
        """
        state = self._state
        match event:
            case AgentAsked():
                return permit_rule.decide(state, event, now)
            case PodToBind(pod, node):
                return replace(binding.reserve(state, pod, node), effects=self._finish(outside=False))
            case MoveWanted(move, name):
                reservation = migration_reservations.reserve_move(state, move, name, now)
                return replace(reservation, effects=(*reservation.effects, *self._finish(outside=False)))
            case RaiseWanted(uid, request):
                order = request_orders.raise_requests(state, uid, request, now)
                return ResizeDecision(order, self._finish(outside=False))
            case ResizeDue(uid):
                order = request_orders.requests_due(state, uid, now)
                return ResizeDecision(order, self._finish(outside=False))
            case PermitWritten():
                permit_rule.permit_written(state, event)
            case PodSeen(pod):
                binding.see_pod(state, pod)
            case PodGone(uid):
                state.pod_gone(uid)
            case PodRead(uid, read):
                binding.pod_read(state, uid, read)
            case VmSeen(vm):
                state.know_vm(believed(state, vm), now, at_rebuild=False)
            case VmGone(name):
                state.lose_vm(name)
            case NodeSeen(facts):
                listing.see_node(state, facts)
            case NodeGone(node):
                state.know_node(node, None)
            case MigrationSeen(migration):
                migration_reservations.see_migration(state, migration, now)
            case MigrationGone(name):
                migration_reservations.lose_migration(state, name)
            case Listed():
                return self._listed(event, now)
            case TimePassed():
                state.lapse(now)
                judge_all_again(state)
            case VersionsForgotten():
                state.forget_versions()
                return ()  # the reads that it orders wait for the lists
            case _:
                return (*_reported(state, event, now), *self._finish(outside=False))
        return self._finish(outside=True)

    def _listed(self, lists: Listed, now: Instant) -> Effects:
        is_first = not self.is_ready
        doubtful = listing.take_in(self._state, lists, now)
        effects = (*doubtful, *self._finish(outside=True))
        # Pods that the previous process refused wait for room here too: kube-scheduler does not ask about them again
        # by itself.
        return (*effects, *binding.find_waiting(self._state, lists.pods)) if is_first else effects

    def _finish(self, *, outside: bool) -> Effects:
        """Ends a step. ``outside``: facts from outside caused it, so it may have pushed a node over its total."""
        # Before ``finish`` publishes the rooms: a reservation that follows from this step must be in them.
        migration_reservations.settle(self._state)
        return self._state.finish(outside=outside)


def _reported(state: LedgerState, event: Report, now: Instant) -> Effects:
    match event:
        case BindEnded():
            return binding.bind_ended(state, event)
        case PodRefused(pod, nodes):
            return binding.look_further(state, pod, nodes)
        case MoveAnswered(migration, outcome):
            return migration_reservations.move_answered(state, migration, outcome)
        case ResizeRefused():
            request_orders.resize_refused(state, event, now)
        case ResizeUnanswered(order, why):
            request_orders.resize_unanswered(state, order, why)
        case SettingsRead(ranking):
            state.node_indexes.rank_by(ranking)
            state.scheduler, state.sampled.percent = event.scheduler, event.percent_of_nodes
        case RequestsFollow():
            request_orders.follow(state, event)
        case _:
            assert_never(event)
    return ()
