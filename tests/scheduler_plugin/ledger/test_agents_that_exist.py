"""A permit is a promise to an agent that exists; a VM without an agent follows its object."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.permit_account import PermitAccount
from scheduler_plugin.ledger.accounts.permit_state import SETTLE, SILENT
from scheduler_plugin.ledger.events import (
    Listed,
    MigrationSeen,
    MoveRequested,
    PermitWritten,
    PodGone,
    PodSeen,
    StoreRestored,
    TimePassed,
    VmGone,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationPhase, VmFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import PersistPermit, RoomFreed
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    NOW,
    Fleet,
    amount,
    migration,
    name,
    node,
    permit_stored,
    plain_pod,
    vm,
    vm_pod,
)

AFTER = Instant(NOW + SETTLE)


def opted_out(of: str, use: float, *, permit: float | None = None, version: int = 1) -> VmFacts:
    found = vm(of, amount(use), permit=None if permit is None else amount(permit), version=version)
    return replace(found, has_agent=False)


def pending(of: str, use: float, *, permit: float | None = None, version: int = 1) -> VmFacts:
    found = vm(of, amount(use), permit=None if permit is None else amount(permit), version=version)
    return replace(found, phase="Pending")


def taken_back(to: float, revision: int) -> PersistPermit:
    return PersistPermit(name("a"), amount(to), revision, before_answer=False, uid="a-first", revokes=True)


def test_unheard_agent_holds_nothing() -> None:
    fleet = Fleet(node(), vm("a", amount(8)), vm_pod("a", "n1"))
    fleet.resize("a", amount(1), now=Instant(AFTER - 1))
    assert fleet.on("n1") == amount(8), "its first message may still be on its way"
    fleet.apply(TimePassed(), Instant(AFTER - 1))
    assert fleet.on("n1") == amount(8)
    fleet.apply(TimePassed(), AFTER)
    assert fleet.on("n1") == amount(1)


def test_next_object_news_ends_promise() -> None:
    fleet = Fleet(node(), vm("a", amount(8)), vm_pod("a", "n1"))
    fleet.resize("a", amount(1), now=AFTER)
    assert fleet.on("n1") == amount(1)


def test_heard_agent_keeps_its_permit() -> None:
    fleet = Fleet(node(), vm("a", amount(8)), vm_pod("a", "n1"))
    fleet.grant("a", amount(8), number=1, now=NOW)
    fleet.resize("a", amount(1), now=LATER)
    fleet.apply(TimePassed(), LATER)
    assert fleet.on("n1") == amount(8)


def test_stored_permit_survives_silence() -> None:
    fleet = Fleet(node(), vm("a", amount(1), permit=amount(8)), vm_pod("a", "n1"))
    fleet.apply(TimePassed(), LATER)
    assert fleet.on("n1") == amount(8)


def test_opted_out_vm_follows_its_object() -> None:
    fleet = Fleet(node(), opted_out("a", 1, permit=1), vm_pod("a", "n1"))
    assert fleet.on("n1") == amount(1)
    fleet.apply(VmSeen(opted_out("a", 3, permit=1, version=2)), LATER)
    assert fleet.on("n1") == amount(3)
    fleet.apply(VmSeen(opted_out("a", 2, permit=1, version=3)), LATER)
    assert fleet.on("n1") == amount(2)


def off(fleet: Fleet) -> PersistPermit:
    """VM a was opted out long enough ago for its permit to be revoked."""
    assert fleet.apply(VmSeen(opted_out("a", 1, permit=8, version=7)), LATER) == ()
    assert fleet.apply(TimePassed(), Instant(LATER + SETTLE - 1)) == ()
    (order,) = fleet.apply(TimePassed(), Instant(LATER + SETTLE))
    assert isinstance(order, PersistPermit)
    return order


def test_short_opt_out_takes_nothing_back() -> None:
    """An original agent that has not seen the opt-out resizes its VM up to its permit, regardless of the object."""
    fleet = Fleet(node(), vm("a", amount(1)), vm_pod("a", "n1"))
    fleet.grant("a", amount(8))
    for time in (LATER, Instant(LATER + SETTLE)):
        assert fleet.apply(VmSeen(opted_out("a", 1, permit=8, version=int(time))), time) == ()
        again = vm("a", amount(1), permit=amount(8), version=int(time) + 1)
        fleet.apply(VmSeen(again), Instant(time + SETTLE - 1))
        assert fleet.on("n1") == amount(8)


def test_opt_out_frees_after_take_back() -> None:
    """The agent may not have seen the opt-out. After a new opt-in it would find its old permit on the object."""
    fleet = Fleet(node(), vm("a", amount(1)), vm_pod("a", "n1"))
    fleet.grant("a", amount(8), number=1)
    order = off(fleet)
    assert (order.permit, order.before_answer, fleet.on("n1")) == (amount(1), False, amount(8))
    assert fleet.apply(TimePassed(), Instant(LATER + SETTLE)) == (), "it is on its way"
    fleet.apply(permit_stored(order.revision, opted_out("a", 1, permit=1, version=8)))
    assert fleet.on("n1") == amount(1)
    fleet.apply(VmSeen(vm("a", amount(1), permit=amount(1), version=9)), LATER)
    decision = fleet.ask("a", amount(8), number=2, last_permit=amount(8))
    assert decision.persist is not None
    assert decision.persist.before_answer


def test_answer_after_opt_out_is_held() -> None:
    """A guest that shrinks after the response to its agent has less than the agent may use again."""
    fleet = Fleet(node(), vm("a", amount(4)), vm_pod("a", "n1"))
    fleet.grant("a", amount(4), number=1)
    fleet.apply(VmSeen(opted_out("a", 4, permit=4, version=5)), LATER)
    asked = Instant(LATER + SETTLE - 5)
    assert fleet.ask("a", amount(4), number=2, last_permit=amount(4), now=asked).permit == amount(4)
    fleet.apply(VmSeen(opted_out("a", 3, permit=4, version=6)), asked)
    orders = fleet.apply(TimePassed(), Instant(LATER + SETTLE))
    (order,) = [effect for effect in orders if isinstance(effect, PersistPermit)]
    fleet.apply(permit_stored(order.revision, opted_out("a", 3, permit=3, version=7)))
    assert fleet.on("n1") == amount(4)
    fleet.apply(TimePassed(), Instant(asked + SETTLE))
    assert fleet.on("n1") == amount(3)


def test_agentless_vm_wants_take_back() -> None:
    fleet = Fleet(node(), vm("a", amount(1)), vm_pod("a", "n1"))
    fleet.grant("a", amount(8), number=1)
    order = off(fleet)
    assert fleet.ledger.is_write_needed(order)
    fleet.apply(VmSeen(vm("a", amount(1), permit=amount(8), version=8)), LATER)
    assert not fleet.ledger.is_write_needed(order)
    assert fleet.ledger.is_write_needed(replace(order, revokes=False))
    assert fleet.ledger.is_write_needed(replace(order, vm=name("gone")))


def test_opt_out_during_downtime_is_taken_back() -> None:
    ledger = Ledger()
    effects = ledger.apply(Listed([node()], [vm_pod("a", "n1")], [opted_out("a", 1, permit=8)]), NOW)
    assert (effects, ledger.nodes["n1"].reserved) == ((), amount(8))
    assert ledger.apply(TimePassed(), AFTER) == (taken_back(1, 1),)
    ledger.apply(PermitWritten(name("a"), 1, WriteOutcome.REFUSED, why="403"), LATER)
    assert ledger.nodes["n1"].reserved == amount(8)
    assert ledger.apply(TimePassed(), LATER) == (taken_back(1, 2),)
    ledger.apply(permit_stored(2, opted_out("a", 1, permit=1, version=2)), LATER)
    assert ledger.nodes["n1"].reserved == amount(1)


def test_opted_out_agent_gets_present_size() -> None:
    fleet = Fleet(node(), opted_out("a", 2), vm_pod("a", "n1"))
    decision = fleet.ask("a", amount(5), number=1, last_permit=amount(9))
    assert (decision.permit, decision.persist, fleet.on("n1")) == (amount(2), None, amount(2))
    assert not fleet.ledger.nodes["n1"].unmet.any


def denied(fleet: Fleet) -> tuple[Resources, Seconds | None]:
    """Room denied on n1, and how long ``a`` has been denied it."""
    return fleet.ledger.nodes["n1"].unmet, fleet.ledger.explain("uid-a", LATER).denied_for


def full_fleet() -> Fleet:
    """``a`` was denied 3 of the 6 that its agent requested."""
    fleet = Fleet(node(total=5), vm("a", amount(2)), vm_pod("a", "n1"), plain_pod("b", amount(1), "n1"))
    fleet.grant("a", amount(6), number=1)
    assert denied(fleet) == (amount(3), 0.0)
    return fleet


def test_silent_agents_denial_ends() -> None:
    fleet = full_fleet()
    fleet.apply(TimePassed(), Instant(LATER + SILENT - 1))
    assert denied(fleet) == (amount(3), 0.0)
    fleet.apply(TimePassed(), Instant(LATER + SILENT))
    assert denied(fleet) == (ZERO, None)


def test_repeated_request_stays_denied() -> None:
    fleet = full_fleet()
    fleet.grant("a", amount(7), number=2, now=Instant(LATER + SILENT - 1))
    fleet.apply(TimePassed(), Instant(LATER + SILENT))
    assert denied(fleet) == (amount(4), 0.0)


def test_opt_out_ends_denial() -> None:
    fleet = full_fleet()
    fleet.apply(VmSeen(opted_out("a", 2, version=7)), LATER)
    assert denied(fleet) == (ZERO, None)


def test_opt_out_in_write_ends_denial() -> None:
    fleet = Fleet(node(total=5), vm("a", amount(2)), vm_pod("a", "n1"), plain_pod("b", amount(1), "n1"))
    decision = fleet.ask("a", amount(6), number=1)
    assert decision.persist is not None
    fleet.apply(permit_stored(decision.persist.revision, opted_out("a", 2, permit=3, version=7)))
    assert denied(fleet) == (ZERO, None)


def test_smaller_pending_vm_is_woken() -> None:
    fleet = Fleet(node(total=4), pending("a", 8))
    assert fleet.ledger.filter(vm_pod("a"), ["n1"]).fits == []
    assert fleet.apply(VmSeen(pending("a", 2, version=2)), LATER) == (RoomFreed("n1"),)
    assert fleet.ledger.filter(vm_pod("a"), ["n1"]).fits == ["n1"]


def test_orphaned_permit_is_taken_back() -> None:
    fleet = Fleet(node(), vm("a", amount(1)), vm_pod("a", "n1"))
    fleet.grant("a", amount(8), number=1)
    (order,) = fleet.apply(PodGone("uid-a"))
    assert isinstance(order, PersistPermit)
    assert order == taken_back(1, order.revision)
    assert fleet.ledger.claim_of(vm_pod("a", uid="next")) == amount(8), "until it is known to be written"
    fleet.apply(permit_stored(order.revision, vm("a", amount(1), permit=amount(1), version=9)))
    assert fleet.ledger.claim_of(vm_pod("a", uid="next")) == amount(1)


def test_failed_take_back_is_retried() -> None:
    fleet = Fleet(node(total=4), pending("a", 2, permit=8))
    assert fleet.ledger.filter(vm_pod("a"), ["n1"]).fits == []
    fleet.apply(PermitWritten(name("a"), 1, WriteOutcome.UNKNOWN))
    (order,) = fleet.apply(TimePassed(), LATER)
    assert isinstance(order, PersistPermit)
    assert order == taken_back(2, order.revision)
    assert fleet.apply(TimePassed(), LATER) == (), "it is on its way"
    stored = fleet.ledger.apply(permit_stored(order.revision, pending("a", 2, permit=2, version=2)), LATER)
    assert fleet.did(stored) == (RoomFreed("n1"),)


def test_restart_takes_back_gone_pods_permit() -> None:
    ledger = Ledger()
    assert ledger.apply(Listed([node(total=4)], [], [pending("a", 2, permit=8)]), NOW) == (taken_back(2, 1),)
    ledger.apply(permit_stored(1, pending("a", 2, permit=2, version=2)), LATER)
    assert ledger.filter(vm_pod("a"), ["n1"]).fits == ["n1"]


def test_a_deleted_vm_has_nothing_to_take_back() -> None:
    fleet = Fleet(node(), vm("a", amount(1)), vm_pod("a", "n1"))
    fleet.grant("a", amount(8), number=1)
    fleet.apply(VmGone(name("a")))
    assert fleet.apply(PodGone("uid-a")) == ()


def test_a_store_that_went_back_is_followed() -> None:
    fleet = Fleet(node(), vm("a", amount(6), version=90), vm_pod("a", "n1"))
    fleet.apply(PodGone("uid-a"))
    fleet.apply(MigrationSeen(migration("a", version=90)), LATER)
    fleet.apply(PodSeen(vm_pod("b", "n1")))
    fleet.ledger.apply(StoreRestored(), LATER)
    pods, moves = [vm_pod("a", "n1"), vm_pod("b", "n1")], [migration("a", MigrationPhase.PENDING, version=7)]
    fleet.apply(Listed([node()], pods, [vm("a", amount(2), version=7)], moves), LATER)
    assert fleet.reserved("a") == amount(2)
    assert [each.phase for each in fleet.ledger.migrations.values()] == [MigrationPhase.PENDING]


def test_unseen_migration_has_no_version() -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(1), pod=name("a-pod")), vm_pod("a", "n1"))
    fleet.ledger.apply(MoveRequested(Move(name("a"), "uid-a", "n1", "n2", "full"), name("a-1")), LATER)
    fleet.ledger.apply(StoreRestored(), LATER)
    assert list(fleet.ledger.migrations) == [name("a-1")]


def test_facts_of_unopened_vm_are_ignored() -> None:
    account = PermitAccount()
    account.observe(vm("a", amount(1)))
    assert (account.facts, account.reserved) == (None, ZERO)
