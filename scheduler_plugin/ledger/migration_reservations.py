"""What migrations do to the accounts: room on the target before a move, and the order to the source (S4.9).

Rules that hold here:

- Everything is derived from the present facts whenever something about the VM, its migrations or the target node has
  changed, so the order of events does not matter.
- A VM has one reservation on each node where it is or will be. Room is reserved on the node that the migration names
  while the VM claims nothing there and its target pod is nowhere; the pod's own claim takes the reservation's place.
- A reservation shares the VM's account, so it grows, shrinks and bounds growth like any of its claims. It never pushes
  a node over its total.
- The pod that a VM has left may stay for ever if its kubelet is dead. It keeps what it had, and bounds nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocol.messages import ObjectName
from protocol.units import ZERO, Instant
from scheduler_plugin.ledger import outcomes
from scheduler_plugin.ledger.accounts.claims import Claim, ClaimState, VmAccount, claim_size
from scheduler_plugin.ledger.events import WriteEnd
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, PodFacts
from scheduler_plugin.ledger.moves import BEGINS_WITHIN, Creation, Migration, Move, carried_out
from scheduler_plugin.ledger.state import LedgerState
from scheduler_plugin.placement.verdict import FITS, Fits, NeverFits, Refused, Room, Verdict, shortage, verdict
from scheduler_plugin.texts import explanations, refusals

OVER: Final = Refused(refusals.MIGRATION_OVER)
OTHER_VM: Final = NeverFits(refusals.OTHER_VM)
STAYS_AWAY: Final = NeverFits(refusals.LEAVES_NODE)
TAKEN: Final = Refused(refusals.NAME_TAKEN)
ON_THE_WAY: Final = Refused(refusals.MIGRATES)
STALLED: Final = explanations.STALLED.format(span=BEGINS_WITHIN)
NOT_SETTLED: Final = Refused(refusals.NOT_SETTLED)


# What happens to migrations ------------------------------------------------------------------------------------------


def reserve_move(state: LedgerState, move: Move, name: ObjectName, now: Instant) -> outcomes.Reservation:
    """Reserves room on the target and gives the order to the source, or says why not."""
    state.require_ready()
    claim = state.claims.get(move.uid)
    judged, detail = _may_reserve(state, move, claim), ""
    if name in state.migrations.named:
        judged = TAKEN
    room = state.rooms.get(move.target)
    if judged is FITS and claim is not None:
        # One that sleeps runs as soon as it has arrived.
        needed = claim.reserved + claim.wake_need.missing
        judged = verdict(room, needed)
        detail = "" if room is None or judged is FITS else shortage(room, needed)
    if judged is not FITS or claim is None:
        return outcomes.Reservation(judged, detail)
    ordered = Migration(name, move.vm, now, move.target, move.reason, move.source, Creation.ORDERED, cause=move.cause)
    ordered.source_pod = claim.pod.name
    state.migrations.add(ordered)
    return outcomes.Reservation(FITS, effects=(outcomes.CreateMigration(name, move),))


def _may_reserve(state: LedgerState, move: Move, claim: Claim | None) -> Verdict:
    if claim is None or claim.vm is None or claim.pod.vm != move.vm or claim.node != move.source:
        return NOT_SETTLED
    if state.migrations.active(move.vm) is not None:
        return ON_THE_WAY
    if claim.state is not ClaimState.BOUND or claim.vm.hosts != [claim]:
        return NOT_SETTLED
    return STAYS_AWAY if move.target == move.source else FITS


def see_migration(state: LedgerState, facts: MigrationFacts, now: Instant) -> None:
    """A migration as a watch, a list or a read shows it."""
    if state.migrations.is_gone(facts.uid):
        return
    migration = state.migrations.named.get(facts.name)
    # Deleted and made again under the same name, between two events of the watch.
    if migration is not None and migration.facts is not None and migration.facts.uid != facts.uid:
        _forget(state, migration)
        migration = None
    if migration is None:
        migration = Migration(facts.name, facts.vm, now)
        state.migrations.add(migration)
    migration.learn(facts, now)
    state.recount(migration.vm)
    state.migrations.disturb(migration.vm)


def lose_migration(state: LedgerState, name: ObjectName) -> None:
    """The migration was deleted, or certainly never made."""
    gone = state.migrations.named.get(name)
    if gone is not None:
        _forget(state, gone)
        state.recount(gone.vm)


def _forget(state: LedgerState, migration: Migration) -> None:
    state.migrations.drop(migration.name)
    state.close_claim(migration.reservation_uid)


def move_answered(state: LedgerState, name: ObjectName, outcome: WriteEnd) -> outcomes.Effects:
    """The API made the migration, certainly did not, or the outcome is unknown and it has to be read."""
    migration = state.migrations.named.get(name)
    # One that was seen exists, whatever was answered.
    if migration is None or migration.facts is not None:
        return ()
    if outcome is WriteEnd.REFUSED:
        lose_migration(state, name)
        return ()
    is_unsure = outcome is WriteEnd.UNKNOWN
    migration.creation = Creation.UNSURE if is_unsure else Creation.DONE
    return (outcomes.ReadMigration(name),) if is_unsure else ()


def relist(state: LedgerState, listed: Collection[MigrationFacts], now: Instant) -> outcomes.Effects:
    """Take in a complete list. Returns reads of those that we ordered and never saw."""
    for facts in listed:
        see_migration(state, facts, now)
    doubtful: list[outcomes.Effect] = []
    for name in state.migrations.named.keys() - {facts.name for facts in listed}:
        migration = state.migrations.named[name]
        if migration.facts is not None:
            lose_migration(state, name)
        # It may be younger than the list.
        elif migration.creation is not Creation.ORDERED:
            doubtful.append(outcomes.ReadMigration(name))
    return tuple(doubtful)


def fit_left(state: LedgerState) -> None:
    """After a first list: cut the claims of pods that their VMs have left to what their nodes have room for.

    What such a pod had is no longer known, only that it fitted; since then its neighbours may have grown, and its VM
    elsewhere. If its migration is deleted too, it is known as a pod beside the VM's own one that its node has no room
    for.
    """
    for account in state.vms.values():
        state.note_left(account)
        for claim in account.claims:
            over = state.nodes[claim.node].over
            if over.any and (claim.left is not None or (claim.pod.migration is None and account.runs_beside(claim))):
                claim.left = claim.reserved.minus_or_zero(over)
                state.change(claim)


# What follows from them ----------------------------------------------------------------------------------------------


def settle(state: LedgerState) -> None:
    """Brings the claims of every VM about which something has changed to what its migrations make of them."""
    while state.migrations.disturbed:
        vm = next(iter(state.migrations.disturbed))
        del state.migrations.disturbed[vm]
        account = state.vms.get(vm)
        migrations = state.migrations.of(vm)
        for migration in migrations:
            _trace(migration, account)
        state.note_left(account)  # where the VM runs decides what has to be reserved
        for migration in migrations:
            # Whoever made the migration: while its target pod finds no node, the VM stays, and no room is kept for it.
            # It counts again once the pod has a node.
            migration.is_stalled = migration.is_active and migration.is_overdue and not has_place(migration, account)
            if not _keeps_reservation(state, migration, account):
                state.close_claim(migration.reservation_uid)
        for migration in migrations:
            migration.problem = _reserve(state, migration, account)
        for claim in [] if account is None else account.claims:
            leaving = [migration for migration in migrations if leaves(migration, claim)]
            state.change(claim, is_migrating=bool(leaving))
            # A VM holds still only once its target pod has a node: until then the move may be refused, and the VM may
            # grow.
            claim.holds_still = any(has_place(migration, account) for migration in leaving)


def _trace(migration: Migration, account: VmAccount | None) -> None:
    for claim in [] if account is None else account.claims:
        if is_target(migration, claim):
            migration.placed_on = claim.node
        elif leaves(migration, claim):
            migration.source, migration.source_pod = claim.node, claim.pod.name


def has_place(migration: Migration, account: VmAccount | None) -> bool:
    """Return True if the target pod has a node; before that it may never get one."""
    # Its controller has begun, or it is over.
    if migration.phase is not MigrationPhase.PENDING:
        return True
    return any(is_target(migration, claim) for claim in ([] if account is None else account.claims))


def is_target(migration: Migration, claim: Claim) -> bool:
    """Return True if the claim is of the pod that the migration takes the VM to."""
    return claim.pod.migration == migration.name or (
        claim.pod.name == migration.target_pod and claim.state is not ClaimState.INCOMING
    )


def leaves(migration: Migration, claim: Claim) -> bool:
    """Return True if the claim is of the pod that the migration takes the VM away from."""
    if claim.state is ClaimState.INCOMING or claim.pod.migration is not None or is_target(migration, claim):
        return False
    # A new VM has the name: the migration is not about the pods of the one before.
    if migration.is_stalled or (claim.vm is not None and claim.vm.is_replaced):
        return False
    facts = None if claim.vm is None else claim.vm.facts
    runs_here = facts is not None and facts.pod == claim.pod.name
    if migration.is_active:
        return runs_here if migration.source_pod is None else migration.source_pod == claim.pod.name
    return migration.phase is MigrationPhase.SUCCEEDED and migration.source_pod == claim.pod.name and not runs_here


def _wants_reservation(state: LedgerState, migration: Migration, account: VmAccount | None) -> bool:
    if migration.target is None or account is None or account.facts is None or account.is_deleted:
        return False
    if migration.is_stalled:
        return False
    if migration.is_active:
        # People may make any number of migrations of a VM; it moves by one at a time.
        is_expected = carried_out(state.migrations.of(migration.vm)) is migration
    else:
        # A success that is heard of before its target pod keeps the room until the pod is seen.
        runs_in, pods = account.facts.pod, (migration.source_pod, migration.target_pod)
        is_expected = migration.arrives_unseen and runs_in is not None and runs_in in pods
    if not is_expected:
        return False
    others = [claim for claim in account.hosts if claim.pod.uid != migration.reservation_uid]
    return not any(claim.node == migration.target or is_target(migration, claim) for claim in others)


def _room(state: LedgerState, node: str | None) -> Room | None:
    """The present room of a known node: the published one may be older than this step."""
    book = None if node is None else state.nodes.get(node)
    return None if book is None or book.facts is None else book.room


def _keeps_reservation(state: LedgerState, migration: Migration, account: VmAccount | None) -> bool:
    reservation = state.claims.get(migration.reservation_uid)
    room = _room(state, migration.target)
    if reservation is None or room is None or not room.is_open or reservation.node != room.node:
        return False
    # Another VM has the name: this one may still be on its way.
    if reservation.vm is not None and reservation.vm is not account:
        return (
            not any(host.node == reservation.node for host in reservation.vm.hosts if host is not reservation)
            and migration.is_active
        )
    return _wants_reservation(state, migration, account)


def _reserve(state: LedgerState, migration: Migration, account: VmAccount | None) -> str | None:
    """Reserves the room if it is wanted; returns the obstacle if there is one."""
    if migration.is_stalled:
        return STALLED
    if migration.reservation_uid in state.claims or not _wants_reservation(state, migration, account):
        return None
    room = _room(state, migration.target)
    if room is None or account is None:
        return explanations.NODE_GONE.format(node=migration.target)
    pod = _incoming(migration, account, room.node)
    judged = verdict(room, claim_size(pod, account))
    if not isinstance(judged, Fits):
        # The planner reads the problem, and may cancel.
        return explanations.NODE_REFUSES.format(node=migration.target, why=judged.message)
    state.open_claim(pod, room.node, ClaimState.INCOMING)
    return None


def _incoming(migration: Migration, account: VmAccount, node: str) -> PodFacts:
    """The pod that will come. It is made from the same object as the VM's present pod, so its overhead is the same."""
    like = next((claim.pod for claim in account.hosts), None)
    requests, around = (ZERO, ZERO) if like is None else (like.requests, like.around)
    return PodFacts(migration.reservation_uid, migration.name, requests, migration.vm, node, around=around)


# Where a target pod may go -------------------------------------------------------------------------------------------


def judge_target(state: LedgerState, pod: PodFacts, migration: ObjectName, node: str) -> Verdict:
    """Check that a pod owned by ``migration`` may be placed on ``node``. Raises ``NotReadyError``.

    Reserved room is open to it alone, so there it always fits; without a reservation it is placed like any pod, except
    on the node that its VM is to leave, and nowhere but on the node that the migration names.
    """
    owner = state.migrations.named.get(migration)
    if owner is None:
        raise outcomes.NotReadyError(refusals.MIGRATION_UNKNOWN.format(migration=migration, pod=pod.name))
    if not owner.is_active or owner.is_leaving:
        return OVER
    account = state.vms.get(owner.vm)
    if pod.vm != owner.vm or account is None:
        return OTHER_VM
    if owner.target not in (None, node):
        return NeverFits(refusals.OTHER_TARGET.format(node=owner.target))
    if any(claim.node == node and leaves(owner, claim) for claim in account.claims):
        return STAYS_AWAY
    needed = claim_size(pod, account)
    reservation = state.claims.get(owner.reservation_uid)
    if reservation is None:
        return verdict(state.rooms.get(node), needed)
    room = state.rooms.get(node)
    # The reserved room is open to this pod alone; only what it needs beyond that must fit.
    beyond = needed.minus_or_zero(reservation.reserved)
    return FITS if room is None or not beyond.any else verdict(room, beyond)
