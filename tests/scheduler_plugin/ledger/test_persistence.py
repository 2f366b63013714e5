"""A permit is persisted before an increase is answered, and room that the API may hold is never given away."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.units import Instant
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.ledger.events import Listed, PermitWritten, PodGone, VmGone, VmSeen, WriteOutcome
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.outcomes import PermitDecision, PersistPermit
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, UNIT, Fleet, amount, name, node, permit_stored, vm, vm_pod

HOLDERS = ("uid-a", "uid-a")
"""The VM's pod, and the pod of the agent that speaks for it: the same one."""


def fleet_of_one(**more: int) -> Fleet:
    return Fleet(node(), vm("a", amount(2), permit=amount(2)), vm_pod("a", "n1"))


def order(size: float, revision: int, *, before_answer: bool = True) -> PersistPermit:
    return PersistPermit(name("a"), amount(size), revision, before_answer, "a-first", HOLDERS)


def test_an_increase_waits_for_its_write() -> None:
    fleet = fleet_of_one()
    decision = fleet.ask("a", amount(4), number=1)
    assert decision.persist == order(4, 1)
    assert fleet.reserved("a") == amount(4)


def test_what_is_stored_already_needs_no_write() -> None:
    fleet = Fleet(node(), replace(vm("a", amount(2), permit=amount(2)), holders=HOLDERS), vm_pod("a", "n1"))
    assert fleet.ask("a", amount(2), number=1).persist is None


def test_unnamed_agent_waits_until_object_names_it() -> None:
    """A scheduler that is restarted must know who may hold the permit."""
    fleet = fleet_of_one()
    first = fleet.ask("a", amount(2), number=1)
    assert first.persist == order(2, 1)
    assert fleet.ask("a", amount(2), number=2).persist == order(2, 1)
    fleet.store(first)
    assert fleet.ask("a", amount(2), number=3).persist is None


def test_the_same_request_again_touches_nothing() -> None:
    fleet = fleet_of_one()
    fleet.grant("a", amount(4), number=1)
    before = fleet.ledger.rooms["n1"]
    again = fleet.ask("a", amount(4), number=2)
    assert again == PermitDecision(amount(4), UNIT, migrate=False, persist=None, effects=())
    assert fleet.ledger.rooms["n1"] is before


def test_first_permit_is_stored_first() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    assert fleet.ask("a", amount(2), number=1).persist == PersistPermit(
        name("a"), amount(2), 1, before_answer=True, uid="a-first", holders=("uid-a", "uid-a")
    )


def test_a_decrease_is_written_after_its_answer() -> None:
    fleet = fleet_of_one()
    fleet.grant("a", amount(4), number=1)
    decision = fleet.ask("a", amount(3), number=2)
    assert decision.persist == order(3, 2, before_answer=False)


def test_replayed_request_is_idempotent() -> None:
    fleet = fleet_of_one()
    first = fleet.ask("a", amount(4), number=1)
    assert [fleet.ask("a", amount(4), number=number) for number in (1, 2)] == [first, first]


def test_unknown_write_is_reordered() -> None:
    fleet = fleet_of_one()
    first = fleet.ask("a", amount(4), number=1)
    assert first.persist is not None
    for revision in (first.persist.revision, 99):
        fleet.apply(PermitWritten(name("a"), revision, WriteOutcome.UNKNOWN))
    again = fleet.ask("a", amount(4), number=2)
    assert again.persist == order(4, 2)
    fleet.store(again)
    assert fleet.ask("a", amount(4), number=3).persist is None


def test_unknown_decrease_may_be_stored() -> None:
    fleet = fleet_of_one()
    fleet.grant("a", amount(4), number=1)
    down = fleet.ask("a", amount(1), number=2)
    assert down.persist is not None
    fleet.apply(PermitWritten(name("a"), down.persist.revision, WriteOutcome.UNKNOWN))
    up = fleet.ask("a", amount(3), number=3)
    assert up.persist is not None
    assert up.persist.before_answer


def test_only_the_newest_write_says_what_is_stored() -> None:
    fleet = fleet_of_one()
    older = fleet.ask("a", amount(6), number=1)
    newer = fleet.ask("a", amount(4), number=2)
    fleet.store(older)
    assert fleet.reserved("a") == amount(6)
    fleet.store(newer)
    assert fleet.reserved("a") == amount(4)


def test_older_confirmation_hides_nothing() -> None:
    fleet = fleet_of_one()
    decision = fleet.ask("a", amount(4), number=1)
    assert decision.persist is not None
    fleet.apply(VmSeen(vm("a", amount(2), permit=amount(5), version=9)), LATER)
    fleet.apply(permit_stored(1, vm("a", amount(2), permit=amount(4), version=2)))
    assert fleet.reserved("a") == amount(5)


def test_late_confirmation_revives_no_vm() -> None:
    fleet = fleet_of_one()
    decision = fleet.ask("a", amount(4), number=1)
    fleet.apply(VmGone(name("a")))
    fleet.store(decision)
    assert fleet.reserved("a") == amount(4), "its pod is still there"
    fleet.apply(PodGone("uid-a"))
    assert list(fleet.ledger.vms) == []


def test_confirmation_for_other_uid_is_ignored() -> None:
    fleet = fleet_of_one()
    fleet.ask("a", amount(4), number=1)
    fleet.apply(permit_stored(1, vm("a", amount(1), uid="second", version=9)))
    assert fleet.reserved("a") == amount(4)


def test_outcomes_for_forgotten_vm_are_ignored() -> None:
    fleet = Fleet(node())
    assert fleet.ledger.apply(permit_stored(1, vm("a", amount(1))), LATER) == ()
    assert fleet.ledger.apply(PermitWritten(name("a"), 1, WriteOutcome.UNKNOWN), LATER) == ()


def test_removed_permit_is_rewritten() -> None:
    fleet = fleet_of_one()
    fleet.grant("a", amount(4), number=1)
    fleet.apply(VmSeen(vm("a", amount(4), version=9)), LATER)
    assert fleet.ask("a", amount(4), number=2).persist == PersistPermit(
        name("a"), amount(4), 2, before_answer=True, uid="a-first", holders=("uid-a", "uid-a")
    )


def test_unstored_decrease_frees_nothing() -> None:
    fleet = Fleet(
        node(total=11), vm("a", amount(4), permit=amount(4)), vm("b", amount(6)), vm_pod("a", "n1"), vm_pod("b", "n1")
    )
    later = Instant(NOW + SETTLE)
    fleet.ask("a", amount(4), number=1, now=later)
    fleet.resize("a", amount(1))
    told = fleet.ask("a", amount(1), number=2, now=later)
    assert fleet.grant("b", amount(9), number=1, now=later) == amount(6)
    fleet.store(told)
    assert fleet.grant("b", amount(9), number=2, now=later) == amount(9)
    rebuilt = Ledger()
    rebuilt.apply(Listed([node(total=11)], [vm_pod("a", "n1"), vm_pod("b", "n1")], fleet.vms.values()), later)
    assert rebuilt.nodes["n1"].reserved == fleet.on("n1") == amount(10)


def test_a_restart_between_write_and_answer_loses_nothing() -> None:
    fleet = fleet_of_one()
    fleet.store(fleet.ask("a", amount(4), number=1))
    rebuilt = Fleet(node(), *fleet.vms.values(), vm_pod("a", "n1"))
    assert rebuilt.reserved("a") == amount(4)
    assert rebuilt.grant("a", amount(4), number=2) == amount(4)


def test_restart_rewrites_permit_above_use() -> None:
    """A decrease that the scheduler before has sent may land yet; onto the version of a new write it cannot."""
    fleet = fleet_of_one()
    fleet.store(fleet.ask("a", amount(4), number=1))
    rebuilt = Fleet(node(), *fleet.vms.values(), vm_pod("a", "n1"))
    again = rebuilt.ask("a", amount(4), number=2)
    assert (again.permit, again.persist) == (
        amount(4),
        PersistPermit(name("a"), amount(4), 1, before_answer=True, uid="a-first", holders=("uid-a", "uid-a")),
    )
    rebuilt.store(again)
    assert rebuilt.ask("a", amount(4), number=3).persist is None


def test_restart_answers_use_without_write() -> None:
    fleet = fleet_of_one()
    fleet.store(fleet.ask("a", amount(4), number=1))
    fleet.resize("a", amount(4))
    rebuilt = Fleet(node(), *fleet.vms.values(), vm_pod("a", "n1"))
    assert rebuilt.ask("a", amount(4), number=2).persist is None


def test_late_old_decrease_takes_nothing() -> None:
    fleet = fleet_of_one()
    fleet.store(fleet.ask("a", amount(4), number=1))
    fleet.resize("a", amount(4))
    rebuilt = Fleet(node(), *fleet.vms.values(), vm_pod("a", "n1"))
    rebuilt.ask("a", amount(4), number=2)
    rebuilt.apply(VmSeen(replace(rebuilt.vms[name("a")], permit=amount(2), version=99)), LATER)
    assert rebuilt.reserved("a") == amount(4)
    again = rebuilt.ask("a", amount(4), number=3).persist
    assert again is not None
    assert again.permit == amount(4)
