"""On a node that denies VMs, free room is shared by need and weight, in any order of requests (B.17)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from protocol.messages import AgentRequest
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.ledger.accounts.sharing import REQUEST_TIMEOUT
from scheduler_plugin.ledger.events import MigrationSeen, PermitRequested, PermitWritten, WriteOutcome
from scheduler_plugin.ledger.outcomes import PermitDecision
from tests.scheduler_plugin.ledger.fleet import LATER, UNIT, Fleet, amount, migration, name, node, vm, vm_pod

SOON = Instant(LATER + 5)


class Starving:
    """VMs of these sizes on a node of twenty, with agents that want more. ``weights``: other than 10."""

    def __init__(self, sizes: dict[str, float], weights: dict[str, int] | None = None) -> None:
        vms = [vm(of, amount(size), pod=name(f"{of}-pod"), maximum=amount(40)) for of, size in sizes.items()]
        vms = [structs.replace(each, weight=(weights or {}).get(each.name.name, 10)) for each in vms]
        self.fleet = Fleet(node(total=21), *vms, *(vm_pod(of, "n1") for of in sizes))
        self.number = 0

    def asks(self, of: str, size: float, at: Instant = LATER) -> PermitDecision:
        """The VM's agent asks for ``size`` and, if that is less than the VM has, has resized it."""
        if not self.fleet.reserved(of).within(amount(size)):
            self.fleet.resize(of, amount(size))
        self.number += 1
        held = self.fleet.reserved(of).at_most(amount(size))
        decision = self.fleet.ask(of, amount(size), number=self.number, last_permit=held, now=at)
        self.fleet.store(decision)
        return decision

    def permits(self, wishes: Sequence[tuple[str, float]], at: Instant = LATER) -> dict[str, Resources]:
        return {of: self.asks(of, size, at).permit for of, size in wishes}


@pytest.mark.parametrize("wishes", list(permutations([("b", 9.0), ("c", 9.0), ("d", 3.0)])))
def test_order_of_requests_decides_nothing(wishes: Sequence[tuple[str, float]]) -> None:
    """Nine become free, of which the smallest request gets one."""
    starving = Starving({"a": 14, "b": 2, "c": 2, "d": 2})
    starving.permits(wishes)
    starving.asks("a", 5)
    assert starving.permits(wishes, SOON) == {"b": amount(6), "c": amount(6), "d": amount(3)}


def test_smallest_grows_first() -> None:
    starving = Starving({"a": 12, "b": 6, "c": 2})
    starving.permits([("b", 9), ("c", 9)])
    starving.asks("a", 10)
    assert starving.permits([("b", 9), ("c", 9)], SOON) == {"b": amount(6), "c": amount(4)}


def test_weight_counts() -> None:
    starving = Starving({"a": 16, "b": 2, "c": 2}, weights={"b": 30})
    starving.permits([("b", 20), ("c", 20)])
    starving.asks("a", 8)
    assert starving.permits([("c", 20), ("b", 20)], SOON) == {"c": amount(3), "b": amount(9)}


def test_newcomer_takes_no_more_than_its_share() -> None:
    starving = Starving({"a": 15, "b": 2, "c": 3})
    starving.asks("b", 9)
    starving.asks("a", 8)
    assert starving.permits([("c", 9), ("b", 9)], SOON) == {"c": amount(6), "b": amount(6)}


def test_two_resources_are_shared_each_by_itself() -> None:
    starving = Starving({"a": 16, "b": 2, "c": 2})
    starving.fleet.grant("b", amount(9, 2), number=1, now=LATER)
    starving.asks("a", 10)
    assert starving.asks("c", 8, SOON).permit == amount(5, 8)


def test_silent_agent_loses_its_turn() -> None:
    starving = Starving({"a": 16, "b": 2, "c": 2})
    starving.permits([("b", 9), ("c", 9)])
    starving.asks("a", 10, SOON)
    assert starving.asks("c", 9, Instant(LATER + REQUEST_TIMEOUT)).permit == amount(5)
    assert starving.asks("c", 9, Instant(LATER + REQUEST_TIMEOUT + 0.1)).permit == amount(8)


def test_refused_permit_keeps_no_room_idle() -> None:
    """The API server refuses the permit of ``b``, so its share would stay unused forever."""
    starving = Starving({"a": 16, "b": 2, "c": 2})
    starving.permits([("b", 9), ("c", 9)])
    starving.asks("a", 10)
    request = AgentRequest(name("b-pod"), amount(9), amount(2), sequence=50)
    order = starving.fleet.ledger.apply(PermitRequested("uid-b", request), SOON).persist
    assert order is not None
    starving.fleet.apply(
        PermitWritten(name("b"), order.revision, WriteOutcome.REFUSED, None, "a webhook refuses"), SOON
    )
    assert starving.asks("c", 9, SOON).permit == amount(8)


def test_explanation_says_that_room_is_shared() -> None:
    starving = Starving({"a": 16, "b": 2, "c": 2})
    starving.permits([("b", 9), ("c", 9)])
    starving.asks("a", 10)
    explanation = starving.fleet.ledger.explain("uid-b", SOON)
    assert explanation.denied_by == (
        "node n1 has 6 cpu, 6Gi free of 20 cpu, 20Gi, shared with other denied VMs; 7 cpu, 7Gi more needed"
    )


def test_vm_that_leaves_is_kept_nothing() -> None:
    starving = Starving({"a": 16, "b": 2, "c": 2})
    starving.permits([("b", 9), ("c", 9)])
    starving.fleet.apply(MigrationSeen(migration("b", to="n2")))
    starving.asks("a", 10)
    assert starving.asks("c", 9, SOON).permit == amount(8)


def test_no_vm_loses_what_it_has() -> None:
    starving = Starving({"a": 16, "b": 2, "c": 2})
    starving.permits([("b", 9), ("c", 9)])
    assert starving.asks("a", 20, SOON).permit == amount(16)


def test_equals_go_by_length_of_denial() -> None:
    """An indivisible GiB goes to the VM that has waited longest, regardless of its name."""
    starving = Starving({"a": 16, "b": 2, "c": 2})
    starving.asks("c", 9)
    starving.permits([("b", 9), ("a", 15)], SOON)
    assert starving.permits([("b", 9), ("c", 9)], SOON) == {"b": amount(2.5, 2), "c": amount(2.5, 3)}


# Agents that lie, and messages that come late, twice or never -------------------------------------------------------

SIZES = {"liar": 4.0, "b": 6.0, "c": 3.0, "d": 2.0}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(sorted(SIZES)),
        st.integers(1, 12),
        st.sampled_from(["heard", "lost", "twice", "late"]),
        st.integers(0, 20),
    ),
    max_size=25,
)


class Storm(Starving):
    """Each agent knows its permit; the agent of ``liar`` always requests its maximum, and never shrinks."""

    def __init__(self) -> None:
        super().__init__(SIZES)
        self.holds = {of: amount(size) for of, size in SIZES.items()}
        self.sent: list[tuple[Instant, PermitRequested]] = []
        self.at = LATER
        # An agent of which nothing is known yet holds what its first message says.
        for of in ("b", "c", "d"):
            self.says(of, SIZES[of], None, "heard")

    def says(self, of: str, size: float, needs: Resources | None, fate: str) -> None:
        wanted = amount(40) if of == "liar" else amount(size)
        if of != "liar" and not self.holds[of].within(wanted):
            self.fleet.resize(of, wanted)
            self.holds[of] = wanted
        self.number += 1
        request = AgentRequest(
            name(f"{of}-pod"), wanted, self.holds[of].at_most(wanted), sequence=self.number, needs=needs
        )
        event = PermitRequested(f"uid-{of}", request)
        self.sent.append((self.at, event))
        if fate != "late":
            self.arrives(event, of if fate != "lost" else None)
        if fate == "twice":
            self.arrives(event, None)

    def arrives(self, event: PermitRequested, hearing: str | None) -> None:
        decision = self.fleet.ledger.apply(event, self.at)
        self.fleet.did(decision.effects)
        self.fleet.store(decision)
        if hearing is not None:
            self.holds[hearing] = decision.permit
        self.check()

    def check(self) -> None:
        """Permits held are reserved, and reservations fit the node."""
        assert all(hold.within(self.fleet.reserved(of)) for of, hold in self.holds.items())
        assert self.fleet.on("n1").within(amount(20))


@given(STEPS, st.sampled_from([None, ZERO, amount(4000)]), st.permutations(["liar", "c", "d"]))
def test_liar_gets_no_more_than_its_fair_share(
    steps: list[tuple[str, int, str, int]], claimed: Resources | None, order: list[str]
) -> None:
    """It asks for its maximum, claims any needs, and never gives back. After the storm ``b`` does: nothing of that
    stays idle while a VM is denied, and no step of it goes past an honest VM that has less.
    """
    storm = Storm()
    for of, size, fate, wait in steps:
        storm.at = Instant(storm.at + wait)
        storm.says(of, size, claimed if of == "liar" else None, fate)
    for at, event in storm.sent[::3]:
        # No message is on its way for longer.
        if storm.at - at < SETTLE:
            storm.arrives(event, None)
    # All messages in flight have died, so that the next request of an agent proves what it holds.
    storm.at = Instant(storm.at + 60)
    for of in ["b", *order]:
        storm.says(of, 12, claimed if of == "liar" else None, "heard")
    before = {of: storm.fleet.reserved(of) for of in order}
    storm.says("b", 1, None, "heard")
    for of in order * 2:
        storm.says(of, 12, claimed if of == "liar" else None, "heard")
    account = storm.fleet.ledger.nodes["n1"]
    assert account.unmet.at_most(account.room.free) == ZERO
    grown = [of for of in order if not storm.fleet.reserved(of).within(before[of])]
    denied = [of for of in order if storm.fleet.ledger.claims[f"uid-{of}"].unmet.any]
    for rich in grown:
        for poor in denied:
            assert storm.fleet.reserved(rich).within(storm.fleet.reserved(poor) + UNIT)
