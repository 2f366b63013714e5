"""Reservations of migrations on their target nodes, and the order to the source (S4.9).

Rules:

- Everything is recomputed from the facts whenever the VM, its migrations or the target node change, so the order of
  events does not matter.
- A VM has one reservation on each node where it runs or will run. The migration reserves its target until the VM has a
  claim there or its target pod is on a node; then the pod's claim replaces the reservation.
- A reservation belongs to the VM's account, so it grows, shrinks and limits growth like the VM's other claims. It never
  overcommits a node.
- A pod that the VM has left may stay forever if its kubelet is dead. It keeps its reservation but limits no growth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from protocol.messages import ObjectName
from protocol.units import ZERO, Instant
from scheduler_plugin.ledger import outcomes
from scheduler_plugin.ledger.accounts.claims import Claim, ClaimState, VmAccount, claim_size
from scheduler_plugin.ledger.accounts.denials import DenialCost
from scheduler_plugin.ledger.events import WriteOutcome
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, PodFacts
from scheduler_plugin.ledger.moves import START_TIMEOUT, Creation, Migration, Move, current_migration
from scheduler_plugin.ledger.state import LedgerState
from scheduler_plugin.placement.verdict import FITS, Fits, NeverFits, Refused, Room, Verdict, shortage, verdict
from scheduler_plugin.texts import explanations, refusals

OVER: Final = Refused(refusals.MIGRATION_OVER)
OTHER_VM: Final = NeverFits(refusals.OTHER_VM)
STAYS_AWAY: Final = NeverFits(refusals.LEAVES_NODE)
TAKEN: Final = Refused(refusals.NAME_TAKEN)
ON_THE_WAY: Final = Refused(refusals.MIGRATES)
STALLED: Final = explanations.STALLED.format(span=START_TIMEOUT)
NOT_SETTLED: Final = Refused(refusals.NOT_SETTLED)


# Events of migrations -------------------------------------------------------------------------------------------------


def reserve_move(state: LedgerState, move: Move, name: ObjectName, now: Instant) -> outcomes.Reservation:
    """Reserve room on the target and order the move, or return the refusal."""
    state.require_ready()
    claim = state.claims.get(move.uid)
    judged, detail = _may_reserve(state, move, claim), ""
    if name in state.migrations.named:
        judged = TAKEN
    room = state.rooms.get(move.target)
    if judged is FITS and claim is not None:
        # A sleeping VM runs as soon as it arrives.
        needed = claim.reserved + claim.wake_need.missing
        judged = verdict(room, needed)
        detail = "" if room is None or judged is FITS else shortage(room, needed)
    if judged is not FITS or claim is None:
        return outcomes.Reservation(judged, detail)
    ordered = Migration(name, move.vm, now, move.target, move.reason, move.source, Creation.ORDERED, cause=move.cause)
    ordered.source_pod = claim.pod.name
    state.migrations.add(ordered)
    for denied in state.nodes[claim.node].claims.values():
        # The move is for them, and pays what their denials have cost.
        if denied.unmet.any:
            denied.denial_cost = DenialCost(changed_at=now)
    return outcomes.Reservation(FITS, effects=(outcomes.CreateMigration(name, move),))


def _may_reserve(state: LedgerState, move: Move, claim: Claim | None) -> Verdict:
    if claim is None or claim.vm is None or claim.pod.vm != move.vm or claim.node != move.source:
        return NOT_SETTLED
    if state.migrations.active(move.vm) is not None:
        return ON_THE_WAY
    if claim.state is not ClaimState.BOUND or claim.vm.hosts != [claim]:
        return NOT_SETTLED
    return STAYS_AWAY if move.target == move.source else FITS


def observe_migration(state: LedgerState, facts: MigrationFacts, now: Instant) -> None:
    """Record a migration from a watch, a list or a read."""
    if state.migrations.is_gone(facts.uid):
        return
    if facts.is_released:
        remove_migration(state, facts.name)
        return
    migration = state.migrations.named.get(facts.name)
    # Deleted and recreated under the same name between two watch events.
    if migration is not None and migration.facts is not None and migration.facts.uid != facts.uid:
        _forget(state, migration)
        migration = None
    if migration is None:
        migration = Migration(facts.name, facts.vm, now)
        state.migrations.add(migration)
    migration.learn(facts, now)
    state.recount(migration.vm)
    state.migrations.mark_dirty(migration.vm)


def remove_migration(state: LedgerState, name: ObjectName) -> None:
    """Remove a migration that was deleted, or certainly never created."""
    gone = state.migrations.named.get(name)
    if gone is not None:
        _forget(state, gone)
        state.recount(gone.vm)


def _forget(state: LedgerState, migration: Migration) -> None:
    state.migrations.drop(migration.name)
    state.close_claim(migration.reservation_uid)


def create_ended(state: LedgerState, name: ObjectName, outcome: WriteOutcome) -> outcomes.Effects:
    """Record the outcome of creating a migration; if it is unknown, return a read."""
    migration = state.migrations.named.get(name)
    # A migration that a watch has shown exists.
    if migration is None or migration.facts is not None:
        return ()
    if outcome is WriteOutcome.REFUSED:
        remove_migration(state, name)
        return ()
    is_unsure = outcome is WriteOutcome.UNKNOWN
    migration.creation = Creation.UNSURE if is_unsure else Creation.DONE
    return (outcomes.ReadMigration(name),) if is_unsure else ()


def relist(state: LedgerState, listed: Collection[MigrationFacts], now: Instant) -> outcomes.Effects:
    """Store a complete list. Return reads of ordered migrations that are not in it."""
    for facts in listed:
        observe_migration(state, facts, now)
    reads: list[outcomes.Effect] = []
    for name in state.migrations.named.keys() - {facts.name for facts in listed}:
        migration = state.migrations.named[name]
        if migration.facts is not None:
            remove_migration(state, name)
        # It may be newer than the list.
        elif migration.creation is not Creation.ORDERED:
            reads.append(outcomes.ReadMigration(name))
    return tuple(reads)


def cap_left_claims(state: LedgerState) -> None:
    """After the first list, cap claims of pods that their VMs have left to their nodes' room.

    The size of such a pod is no longer known, only that it fitted; since then other claims on its node may have grown,
    and so may its VM elsewhere. If its migration was deleted too, it is a second pod of the VM without room on its
    node.
    """
    for account in state.vms.values():
        state.mark_left_claims(account)
        named = account.known_pod
        for claim in account.claims:
            over = state.nodes[claim.node].overcommit
            runs_elsewhere = claim.pod.migration is None and named not in (None, claim.pod.name)
            if over.any and (claim.left_with is not None or runs_elsewhere):
                claim.left_with = claim.reserved.minus_or_zero(over)
                state.change(claim)


# Reservations ---------------------------------------------------------------------------------------------------------


def settle(state: LedgerState) -> None:
    """Update the claims of every VM marked by ``mark_dirty`` by its migrations."""
    while state.migrations.dirty:
        vm = next(iter(state.migrations.dirty))
        del state.migrations.dirty[vm]
        account = state.vms.get(vm)
        migrations = state.migrations.of(vm)
        index = _ClaimIndex(account)
        related = [(migration, index.of(migration)) for migration in migrations]
        for migration, claims in related:
            _update_nodes(migration, claims)
        state.mark_left_claims(account)  # first: reservations depend on where the VM runs
        for migration, claims in related:
            # For any migration: while its target pod finds no node the VM stays, and no room is reserved. It counts
            # again once the pod has a node.
            migration.is_stalled = (
                migration.is_active and migration.is_overdue and not target_has_node(migration, claims)
            )
        # Once for all of them, because anyone may create thousands of migrations of a VM.
        current = current_migration(migrations)
        for migration in migrations:
            if not _keeps_reservation(state, migration, account, current):
                state.close_claim(migration.reservation_uid)
        for migration in migrations:
            migration.problem = _reserve(state, migration, account, current)
        leaving: dict[Claim, bool] = {}
        for migration, claims in related:
            for claim in claims:
                # Frozen only once the target pod has a node: until then the move may be refused and the VM may grow.
                if is_source(migration, claim):
                    leaving[claim] = leaving.get(claim, False) or target_has_node(migration, claims)
        for claim in [] if account is None else account.claims:
            state.change(claim, is_migrating=claim in leaving)
            claim.is_frozen = leaving.get(claim, False)


def _update_nodes(migration: Migration, claims: Iterable[Claim]) -> None:
    for claim in claims:
        if is_target(migration, claim):
            migration.placed_on = claim.node
        elif is_source(migration, claim):
            migration.source, migration.source_pod = claim.node, claim.pod.name


def target_has_node(migration: Migration, claims: Iterable[Claim]) -> bool:
    """Return True if the target pod has a node, by the VM's ``claims``; before that it may never get one."""
    # The controller has started it, or it is over.
    if migration.phase is not MigrationPhase.PENDING:
        return True
    return any(is_target(migration, claim) for claim in claims)


class _ClaimIndex:
    """The claims of a VM by pod and migration: of thousands, few concern one migration."""

    def __init__(self, account: VmAccount | None) -> None:
        self._named = None if account is None or account.facts is None else account.facts.pod
        self._claims: dict[tuple[str, ObjectName | None], list[tuple[int, Claim]]] = {}
        for number, claim in enumerate([] if account is None else account.claims):
            self._claims.setdefault(("pod", claim.pod.name), []).append((number, claim))
            self._claims.setdefault(("migration", claim.pod.migration), []).append((number, claim))

    def of(self, migration: Migration) -> list[Claim]:
        """All claims that may be the migration's source or target, in the order of the account."""
        pods = (migration.source_pod, migration.target_pod, self._named)
        keys = [("migration", migration.name), *(("pod", pod) for pod in pods)]
        return list(dict(sorted(entry for key in keys for entry in self._claims.get(key, ()))).values())


def is_target(migration: Migration, claim: Claim) -> bool:
    """Return True if the claim belongs to the migration's target pod."""
    return claim.pod.migration == migration.name or (
        claim.pod.name == migration.target_pod and claim.state is not ClaimState.INCOMING
    )


def is_source(migration: Migration, claim: Claim) -> bool:
    """Return True if the claim belongs to the migration's source pod."""
    if claim.state is ClaimState.INCOMING or claim.pod.migration is not None or is_target(migration, claim):
        return False
    # A new VM has the name: the migration is not about the old one's pods.
    if migration.is_stalled or (claim.vm is not None and claim.vm.is_replaced):
        return False
    facts = None if claim.vm is None else claim.vm.facts
    runs_here = facts is not None and facts.pod == claim.pod.name
    if migration.is_active:
        return runs_here if migration.source_pod is None else migration.source_pod == claim.pod.name
    return migration.phase is MigrationPhase.SUCCEEDED and migration.source_pod == claim.pod.name and not runs_here


def _wants_reservation(migration: Migration, account: VmAccount | None, current: Migration | None) -> bool:
    if migration.target is None or account is None or account.facts is None or account.is_deleted:
        return False
    if migration.is_stalled:
        return False
    if migration.is_active:
        # There may be any number of migrations of a VM; it moves by one at a time.
        is_expected = current is migration
    else:
        # A success seen before its target pod keeps the room until the pod is seen.
        runs_in, pods = account.facts.pod, (migration.source_pod, migration.target_pod)
        is_expected = migration.arrived_unseen and runs_in is not None and runs_in in pods
    if not is_expected:
        return False
    others = [claim for claim in account.hosts if claim.pod.uid != migration.reservation_uid]
    return not any(claim.node == migration.target or is_target(migration, claim) for claim in others)


def _room(state: LedgerState, node: str | None) -> Room | None:
    """The present room of a known node; the published one may be older than this step."""
    account = None if node is None else state.nodes.get(node)
    return None if account is None or account.facts is None else account.room


def _keeps_reservation(
    state: LedgerState, migration: Migration, account: VmAccount | None, current: Migration | None
) -> bool:
    reservation = state.claims.get(migration.reservation_uid)
    room = _room(state, migration.target)
    if reservation is None or room is None or not room.is_open or reservation.node != room.node:
        return False
    # Another VM has the name: this one may still be migrating.
    if reservation.vm is not None and reservation.vm is not account:
        may_begin = migration.is_active and not (migration.is_terminating or migration.is_stalled)
        return may_begin and not any(
            host.node == reservation.node for host in reservation.vm.hosts if host is not reservation
        )
    return _wants_reservation(migration, account, current)


def _reserve(
    state: LedgerState, migration: Migration, account: VmAccount | None, current: Migration | None
) -> str | None:
    """Reserve the room if needed; return the reason if that is impossible."""
    if migration.is_stalled:
        return STALLED
    if migration.reservation_uid in state.claims or not _wants_reservation(migration, account, current):
        return None
    room = _room(state, migration.target)
    if room is None or account is None:
        return explanations.NODE_GONE.format(node=migration.target)
    pod = _incoming(migration, account, room.node)
    judged = verdict(room, claim_size(pod, account))
    if not isinstance(judged, Fits):
        # The planner reads the problem and may cancel.
        return explanations.NODE_REFUSES.format(node=migration.target, why=judged.message)
    state.open_claim(pod, room.node, ClaimState.INCOMING)
    return None


def _incoming(migration: Migration, account: VmAccount, node: str) -> PodFacts:
    """The expected target pod: the controller creates it from the same object, so it has the present pod's overhead."""
    present = next((claim.pod for claim in account.hosts), None)
    requests, overhead = (ZERO, ZERO) if present is None else (present.requests, present.overhead)
    return PodFacts(migration.reservation_uid, migration.name, requests, migration.vm, node, overhead=overhead)


# Nodes of target pods -------------------------------------------------------------------------------------------------


def judge_target(state: LedgerState, pod: PodFacts, migration: ObjectName, node: str) -> Verdict:
    """Check that a target pod of ``migration`` may be placed on ``node``. Raises ``NotReadyError``.

    It always fits its reserved room. Without a reservation it is placed like any pod, but never on the source node, and
    only on the node that the migration names, if any.
    """
    owner = state.migrations.named.get(migration)
    if owner is None:
        raise outcomes.NotReadyError(refusals.MIGRATION_UNKNOWN.format(migration=migration, pod=pod.name))
    if not owner.is_active or owner.is_terminating:
        return OVER
    account = state.vms.get(owner.vm)
    if pod.vm != owner.vm or account is None:
        return OTHER_VM
    if owner.target not in (None, node):
        return NeverFits(refusals.OTHER_TARGET.format(node=owner.target))
    if any(claim.node == node and is_source(owner, claim) for claim in account.claims):
        return STAYS_AWAY
    needed = claim_size(pod, account)
    reservation = state.claims.get(owner.reservation_uid)
    if reservation is None:
        return verdict(state.rooms.get(node), needed)
    room = state.rooms.get(node)
    # Reserved for this pod; only the rest must fit.
    beyond = needed.minus_or_zero(reservation.reserved)
    return FITS if room is None or not beyond.any else verdict(room, beyond)
