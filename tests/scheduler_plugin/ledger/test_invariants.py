"""The invariants detect violations: each rule is broken by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.events import MigrationSeen
from scheduler_plugin.ledger.invariants import VmTruth, overcommitted, violations, violations_on
from scheduler_plugin.ledger.ledger import Ledger
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, migration, name, node, plain_pod, vm, vm_pod


def some_ledger() -> Ledger:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"), plain_pod("b", amount(3), "n1"))
    fleet.grant("a", amount(3), number=1)
    return fleet.ledger


def lose_count(ledger: Ledger) -> None:
    ledger.nodes["n1"].replace(amount(1), amount(0))


def lose_claim(ledger: Ledger) -> None:
    del ledger.nodes["n1"].claims["uid-b"]


def double_claim(ledger: Ledger) -> None:
    ledger._state.nodes["n2"] = NodeAccount("n2", claims={"uid-b": ledger.claims["uid-b"]})


def leave_book(ledger: Ledger) -> None:
    ledger._state.nodes["n2"] = NodeAccount("n2")


def hide_room(ledger: Ledger) -> None:
    ledger._state.rooms.clear()


def overgrant(ledger: Ledger) -> None:
    ledger.nodes["n1"].replace(amount(0), amount(9))


def attempt_when_bound(ledger: Ledger) -> None:
    assert ledger.claims["uid-b"].state is ClaimState.BOUND
    ledger.claims["uid-b"].attempts = 1


def permit_above_reservation(ledger: Ledger) -> None:
    account = ledger.claims["uid-a"].vm
    assert account is not None
    account.outstanding.maximum = amount(9)


def stored_upside_down(ledger: Ledger) -> None:
    account = ledger.claims["uid-a"].vm
    assert account is not None
    account.stored_low = amount(9)


def deny_without_agent(ledger: Ledger) -> None:
    claim = ledger.claims["uid-a"]
    assert claim.vm is not None
    assert claim.vm.facts is not None
    claim.unmet = amount(2)
    claim.vm.facts = structs.replace(claim.vm.facts, has_agent=False)


def write_for_pod(ledger: Ledger) -> None:
    account = ledger.claims["uid-a"].vm
    assert account is not None
    assert account.facts is not None
    account.facts = structs.replace(account.facts, is_pod=True)
    account.orders = {9: amount(3)}


def move_pod(ledger: Ledger) -> None:
    write_for_pod(ledger)
    claim = ledger.claims["uid-a"]
    assert claim.vm is not None
    claim.vm.orders, claim.is_migrating = {}, True


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (write_for_pod, "pod uid-a: is an ordinary pod with a permit to write or a migration"),
        (move_pod, "pod uid-a: is an ordinary pod with a permit to write or a migration"),
        (deny_without_agent, "pod uid-a: is denied 2 cpu, 2Gi, which no agent wants"),
        (lose_count, "node n1: reserved is 5 cpu, 5Gi, its claims say 6 cpu, 6Gi"),
        (lose_claim, "nodes count the pods ['uid-a'], the claims are of ['uid-a', 'uid-b']"),
        (double_claim, "nodes count the pods ['uid-a', 'uid-b', 'uid-b'], the claims are of ['uid-a', 'uid-b']"),
        (leave_book, "node n2 is gone and holds nothing, but is still kept"),
        (hide_room, "rooms are published for [], known nodes are ['n1']"),
        (overgrant, "node n1: granted 6 cpu, 6Gi above its total, of which facts forced 0 cpu, 0"),
        (attempt_when_bound, "pod uid-b: is bound and still has 1 bind calls in flight"),
        (permit_above_reservation, "pod uid-a: reserves 3 cpu, 3Gi, less than its VM may use"),
        (stored_upside_down, "pod uid-a: stored permits 9 cpu, 9Gi to 3 cpu, 3Gi"),
    ],
)
def test_every_broken_rule_is_found(breaks: Callable[[Ledger], None], words: str) -> None:
    ledger = some_ledger()
    assert violations(ledger) == []
    breaks(ledger)
    assert words in violations(ledger)


def test_stale_claim_is_violation() -> None:
    ledger = some_ledger()
    ledger.claims["uid-a"].reserved = amount(4)
    assert "pod uid-a: reserves 4 cpu, 4Gi, it must be 3 cpu, 3Gi" in violations(ledger)


def test_uncounted_claim_is_violation() -> None:
    ledger = some_ledger()
    ledger.claims["uid-b"].node = "n9"
    assert "pod uid-b: claims node n9, which does not count it" in violations(ledger)


def some_journey() -> Ledger:
    """The VM ``a`` runs on n1 and has room reserved on n2."""
    fleet = Fleet(node(), node("n2"), vm("a", amount(2)), vm_pod("a", "n1"))
    fleet.apply(MigrationSeen(migration("a", to="n2")), LATER)
    return fleet.ledger


def book_for_nobody(ledger: Ledger) -> None:
    ledger.migrations[name("a-1")].target = "n1"


def book_where_nothing_goes(ledger: Ledger) -> None:
    ledger._state.nodes["n2"].update(node("n2", is_open=False))
    ledger._state.rooms["n2"] = ledger.nodes["n2"].room


def reserve_twice(ledger: Ledger) -> None:
    ledger._state.open_claim(vm_pod("a", "n2", "uid-twice"), "n2", ClaimState.BOUND)


def forget_the_order(ledger: Ledger) -> None:
    ledger.claims["uid-a"].is_migrating = False


def forget_the_booking(ledger: Ledger) -> None:
    ledger._state.close_claim("reservation of db/a-1")


def misfile(ledger: Ledger) -> None:
    ledger._state.migrations.named[name("other")] = ledger._state.migrations.named.pop(name("a-1"))


def mislead(ledger: Ledger) -> None:
    ledger._state.strained.add("n1")


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (book_for_nobody, "reservation of db/a-1: room is kept on node n2 for a migration that does not need it"),
        (book_where_nothing_goes, "reservation of db/a-1: room is kept on node n2, which takes no pod"),
        (reserve_twice, "reservation of db/a-1: the VM is reserved more than once on node n2"),
        (forget_the_order, "pod uid-a: is_migrating is False, its migrations say otherwise"),
        (forget_the_booking, "migration db/a-1: nothing is reserved on its target n2"),
        (misfile, "migration db/other: is not filed under its name and its VM db/a"),
        (mislead, "node n1: is_strained is False, the list of strained nodes says otherwise"),
    ],
)
def test_every_broken_rule_about_migrations_is_found(breaks: Callable[[Ledger], None], words: str) -> None:
    ledger = some_journey()
    assert violations(ledger) == []
    breaks(ledger)
    assert words in violations(ledger)


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        (VmTruth(amount(3), amount(3)), []),
        (VmTruth(amount(3), amount(2)), ["pod uid-a: the guest has 3 cpu, 3Gi, its agent holds 2 cpu, 2Gi"]),
        (VmTruth(amount(3), amount(4)), ["pod uid-a: its agent holds 4 cpu, 4Gi, reserved is 3 cpu, 3Gi"]),
    ],
)
def test_the_truth_is_compared_where_it_is_known(truth: VmTruth, words: list[str]) -> None:
    assert violations(some_ledger(), {"uid-a": truth}) == words


def test_pod_of_gone_vm_blocks_node() -> None:
    """A scheduler that starts after the VM was deleted must assume that its last pod may use anything."""
    orphan = replace(plain_pod("a", amount(1), "n1"), vm=name("a"), vm_uid="a-1")
    fleet = Fleet(node(), orphan)
    assert fleet.ledger.claims[orphan.uid].is_unbounded
    assert violations(fleet.ledger, {orphan.uid: VmTruth(amount(3), amount(3))}) == []


def test_a_guest_without_a_claim_is_found() -> None:
    truth = VmTruth(amount(1), amount(1))
    assert violations(some_ledger(), {"uid-x": truth}) == [
        "pod uid-x: its agent holds 1 cpu, 1Gi, reserved is 0 cpu, 0"
    ]


def test_forced_overcommit_is_no_violation() -> None:
    fleet = Fleet(node(), plain_pod("b", amount(11), "n1"))
    assert violations(fleet.ledger) == []
    assert overcommitted(fleet.ledger) == {"n1": amount(2)}


def test_partial_check_finds_local_violations() -> None:
    ledger = some_ledger()
    truth = VmTruth(amount(3), amount(4))
    assert violations_on(ledger, ["n1"], {"uid-a": VmTruth(amount(3), amount(3))}) == []
    ledger.claims["uid-b"].reserved = amount(4)
    assert violations_on(ledger, [], {"uid-a": truth}) == [
        "pod uid-a: its agent holds 4 cpu, 4Gi, reserved is 3 cpu, 3Gi"
    ]
    assert violations_on(ledger, ["n1"], {"uid-x": truth}) == [
        "node n1: reserved is 6 cpu, 6Gi, its claims say 7 cpu, 7Gi",
        "pod uid-x: its agent holds 4 cpu, 4Gi, reserved is 0 cpu, 0",
    ]
