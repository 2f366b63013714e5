"""A node that is short of room asks its VMs for what they do not need, the largest first (B.17)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from protocol.messages import AgentRequest
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import POD_SHRINK_TIMEOUT, SHRINK_TIMEOUT
from scheduler_plugin.ledger.accounts.sharing import FAST_POLL, PATIENCE, donors, lacking, promised
from scheduler_plugin.ledger.events import HeadroomSeen, MigrationSeen, PermitRequested, PodGone, VmSeen
from scheduler_plugin.ledger.invariants import violations
from tests.scheduler_plugin.ledger.fleet import LATER, UNIT, Fleet, amount, migration, name, node, vm, vm_pod

WIDE = node(total=101)
"""A hundred to reserve, a watermark at seventy, and VMs are asked from sixty-three on."""


class Asking:
    """VMs with these sizes on one node; each sends a request in turn, with its need."""

    def __init__(self, **sizes: float) -> None:
        pods = [vm_pod(of, "n1") for of in sizes]
        vms = [vm(of, amount(size), pod=name(f"{of}-pod"), maximum=amount(100)) for of, size in sizes.items()]
        self.fleet, self.number = Fleet(WIDE, *vms, *pods), 0
        self.ask_again: Seconds | None = None

    def asks(self, of: str, size: float, needs: float | None = None, *, at: Instant = LATER) -> Resources | None:
        """The VM's agent, which has resized it if it shrinks, requests ``size``; returns the size to which it should
        shrink.
        """
        held = self.fleet.reserved(of)
        if not held.within(amount(size)):
            self.fleet.resize(of, amount(size))
        self.number += 1
        request = AgentRequest(
            name(f"{of}-pod"),
            amount(size),
            held,
            sequence=self.number,
            needs=None if needs is None else amount(needs),
        )
        decision = self.fleet.ledger.apply(PermitRequested(f"uid-{of}", request), at)
        self.fleet.store(decision)
        self.ask_again = decision.ask_again
        return decision.shrink_to

    def is_soon(self, of: str, size: float, needs: float | None = None, *, at: Instant = LATER) -> bool:
        """Return True if the VM, whose agent asks for ``size``, is to ask again soon."""
        self.asks(of, size, needs, at=at)
        assert self.ask_again in {None, FAST_POLL}
        return self.ask_again is not None

    def promised(self, at: Instant = LATER) -> Resources:
        return promised(self.fleet.ledger.nodes["n1"], at)


def test_nobody_is_asked_while_there_is_room() -> None:
    fleet = Asking(a=30, b=30)
    assert (fleet.asks("a", 30, 5), fleet.asks("b", 30, 5)) == (None, None)


def test_node_asks_before_its_watermark() -> None:
    fleet = Asking(a=40, b=25)
    assert (fleet.asks("b", 25, 25), fleet.asks("a", 40, 10)) == (None, amount(38))


def test_tallest_gives_first() -> None:
    """The smaller VM offers more, but is asked only once the other has shrunk to its size."""
    fleet = Asking(a=40, b=30)
    assert [fleet.asks("a", 40, 30), fleet.asks("b", 30, 5)] == [amount(33), None]
    fleet = Asking(a=50, b=30)
    assert [fleet.asks("a", 50, 40), fleet.asks("b", 30, 5)] == [amount(40), amount(23)]


def test_vms_stay_while_cluster_is_full() -> None:
    """The node is short of room: VMs that offer nothing, denied or not, are asked to grow by need only."""
    fleet = Asking(a=50, b=30)
    fleet.fleet.apply(HeadroomSeen(is_lacking=True))
    assert [fleet.asks("b", 30), fleet.asks("a", 90), fleet.asks("b", 30, 20)] == [amount(30), amount(70), amount(20)]
    fleet.fleet.apply(HeadroomSeen(is_lacking=False))
    assert [fleet.asks("b", 20), fleet.asks("a", 70)] == [None, None]


def test_vms_of_roomy_node_may_grow() -> None:
    fleet = Asking(a=30, b=30)
    fleet.fleet.apply(HeadroomSeen(is_lacking=True))
    assert [fleet.asks("a", 30), fleet.asks("b", 40), fleet.asks("a", 30)] == [None, amount(40), amount(30)]


def test_original_agent_is_not_asked_to_stay() -> None:
    fleet = Asking(a=50, b=40).fleet
    fleet.apply(HeadroomSeen(is_lacking=True))
    request = AgentRequest(name("a-pod"), amount(50), amount(50))
    assert fleet.ledger.apply(PermitRequested("uid-a", request), LATER).shrink_to is None


def test_equals_give_alike() -> None:
    fleet = Asking(a=40, b=40)
    fleet.asks("a", 40, 10)
    assert [fleet.asks("b", 40, 5), fleet.asks("a", 40, 10)] == [amount(31.5, 31), amount(31.5, 32)]


def test_weight_excuses() -> None:
    fleet = Asking(a=40, b=40)
    heavy = structs.replace(fleet.fleet.vms[name("a")], version=2, weight=20)
    fleet.fleet.vms[name("a")] = heavy
    fleet.fleet.apply(VmSeen(heavy))
    fleet.asks("a", 40, 10)
    assert [fleet.asks("b", 40, 5), fleet.asks("a", 40, 10)] == [amount(23), None]


def test_pending_gift_is_not_asked_again() -> None:
    """Its smaller permit is answered before it is stored, so the room is still reserved."""
    fleet = Asking(a=60, b=39)
    assert [fleet.asks("a", size, 10) for size in (60, 40, 24)] == [amount(24), amount(24), None]


def test_several_give_where_one_is_not_enough() -> None:
    fleet = Asking(a=50, b=40)
    assert [fleet.asks("a", 50, 40), fleet.asks("b", 40, 20)] == [amount(40), amount(23)]


def test_greedy_vm_keeps_nobody_lean_for_ever() -> None:
    """It wants the whole node. After a while its neighbours, which have less than their fair shares, are no longer
    asked.
    """
    fleet = Asking(greedy=60, b=20, c=20)
    fleet.asks("greedy", 100)
    account = fleet.fleet.ledger.nodes["n1"]
    assert lacking(account, Instant(LATER + PATIENCE - 1)) == amount(77)
    assert fleet.asks("b", 20, 5, at=Instant(LATER + PATIENCE - 1)) == amount(5)
    assert fleet.asks("b", 20, 5, at=Instant(LATER + PATIENCE)) is None
    assert (lacking(account, Instant(LATER + PATIENCE)), fleet.promised(Instant(LATER + PATIENCE))) == (ZERO, ZERO)


def test_greedy_vm_spares_no_tall_neighbour() -> None:
    fleet = Asking(greedy=40, b=40, c=20)
    fleet.asks("greedy", 100)
    fleet.asks("b", 40, 5, at=Instant(LATER + PATIENCE))
    assert lacking(fleet.fleet.ledger.nodes["n1"], Instant(LATER + PATIENCE)) == amount(18.5, 18)


def test_denied_neighbour_is_made_room_for() -> None:
    fleet = Asking(a=60, b=35)
    fleet.asks("b", 50)
    assert fleet.asks("a", 60, 10) == amount(13)


def test_agent_that_says_nothing_is_not_asked() -> None:
    fleet = Asking(a=60, b=39)
    assert (fleet.asks("a", 60), fleet.promised()) == (None, ZERO)


def test_vms_ask_soon_near_watermark() -> None:
    """A quarter of the watermark is 17.5: added to 46, that exceeds 63, from where on VMs are asked."""
    assert Asking(a=30, b=15).is_soon("a", 30, 5) is False
    assert Asking(a=30, b=16).is_soon("a", 30, 5) is True
    assert Asking(a=30, b=16).is_soon("a", 30, 30) is False
    assert Asking(a=30, b=16).is_soon("a", 30) is False


def test_tallest_ask_soon() -> None:
    """Of 70 reserved, 7 are asked for immediately, and 17 or 18 more may be needed suddenly."""
    fleet = Asking(a=36, b=22, c=12)
    for of, size, needs in (("a", 36, 10), ("b", 22, 10), ("c", 12, 6)):
        fleet.asks(of, size, needs)
    assert [fleet.is_soon(*vm) for vm in (("a", 36, 10), ("b", 22, 10), ("c", 12, 6))] == [True, True, False]


def test_vain_offer_need_not_ask_soon() -> None:
    fleet = Asking(a=60, b=39)
    soon = [fleet.is_soon("a", 60, 10, at=Instant(LATER + seconds)) for seconds in (0.0, 15.0, 30.0)]
    assert soon == [True, True, False]


def test_offer_that_is_not_kept_promises_nothing() -> None:
    fleet = Asking(a=60, b=39)
    for seconds in (0.0, 15.0):
        fleet.asks("a", 60, 10, at=Instant(LATER + seconds))
    assert fleet.promised(Instant(LATER + SHRINK_TIMEOUT - 1)) == amount(36)
    assert fleet.promised(Instant(LATER + SHRINK_TIMEOUT)) == ZERO
    assert fleet.fleet.reserved("a") == amount(60)


def test_agent_that_never_gives_spares_nobody() -> None:
    fleet = Asking(a=60, b=30)
    asked = [
        (fleet.asks("a", 60, 10, at=Instant(LATER + seconds)), fleet.asks("b", 30, 10, at=Instant(LATER + seconds)))
        for seconds in (0.0, 15.0, 30.0)
    ]
    assert asked == [(amount(33), None), (amount(33), None), (amount(53), amount(10))]


def test_two_agents_that_never_give_promise_nothing() -> None:
    """The second one was once forgotten if the other's offer covered its part."""
    fleet = Asking(a=50, b=45)
    for seconds in range(0, 120, 15):
        for of, size in (("a", 50), ("b", 45)):
            fleet.asks(of, size, 10, at=Instant(LATER + seconds))
    assert fleet.promised(Instant(LATER + 105)) == ZERO


def test_need_that_rises_and_falls_is_no_gift() -> None:
    fleet = Asking(a=60, b=39)
    for seconds in range(0, 120, 15):
        fleet.asks("a", 60, 10 + seconds // 15 % 2, at=Instant(LATER + seconds))
    assert fleet.promised(Instant(LATER + 105)) == ZERO


def test_partial_gift_does_not_renew_promise_for_ever() -> None:
    """It keeps offering memory without giving it back, while it does give back CPU."""
    fleet = Asking(a=60, b=39)
    for turn in range(8):
        fleet.fleet.resize("a", amount(60 - turn, 60))
        number = AgentRequest(
            name("a-pod"), amount(60 - turn, 60), amount(61 - turn, 60), sequence=turn, needs=amount(10, 10)
        )
        fleet.fleet.store(fleet.fleet.ledger.apply(PermitRequested("uid-a", number), Instant(LATER + 15 * turn)))
    assert fleet.promised(Instant(LATER + 105)) == ZERO


def test_end_of_scarcity_forgives() -> None:
    fleet = Asking(a=60, b=30)
    for seconds in (0, 15, 30):
        fleet.asks("a", 60, 10, at=Instant(LATER + seconds))
    fleet.fleet.apply(PodGone("uid-b"))
    fleet.asks("a", 60, 10, at=Instant(LATER + 45))
    assert donors(fleet.fleet.ledger.nodes["n1"], Instant(LATER + 46)) == [fleet.fleet.ledger.claims["uid-a"]]


def test_vm_that_leaves_gives_nothing() -> None:
    fleet = Asking(a=60, b=39)
    fleet.asks("a", 60, 10)
    fleet.fleet.apply(MigrationSeen(migration("a", to="n2")))
    assert fleet.promised() == ZERO


def test_pod_takes_longer_to_give() -> None:
    """It gives memory back after a trial of up to 30 s."""
    fleet = Asking(a=60, b=39)
    pod = structs.replace(fleet.fleet.vms[name("a")], version=2, is_pod=True)
    fleet.fleet.vms[name("a")] = pod
    fleet.fleet.apply(VmSeen(pod))
    for seconds in (0.0, 15.0, 30.0):
        fleet.asks("a", 60, 10, at=Instant(LATER + seconds))
    promises = [fleet.promised(Instant(LATER + POD_SHRINK_TIMEOUT - left)) for left in (1, 0)]
    assert promises == [amount(36), ZERO]


def test_offer_of_lost_agent_promises_nothing() -> None:
    """It is no longer asked, so nothing would show that it does not give back."""
    fleet = Asking(a=60, b=20)
    fleet.asks("b", 20, 10)
    assert fleet.promised(Instant(LATER + SHRINK_TIMEOUT - 1)) == amount(10)
    assert fleet.promised(Instant(LATER + SHRINK_TIMEOUT)) == ZERO


def test_offer_kept_in_part_promises_the_rest() -> None:
    fleet = Asking(a=60, b=39)
    fleet.asks("a", 60, 10)
    fleet.asks("a", 40, 10, at=Instant(LATER + 15.0))
    assert fleet.promised(Instant(LATER + SHRINK_TIMEOUT)) == amount(16)


def test_offer_that_nobody_asked_for_promises_nothing() -> None:
    fleet = Asking(a=30, b=20)
    assert (fleet.asks("a", 30, 10), fleet.promised()) == (None, ZERO)


def test_offer_ends_with_its_pod() -> None:
    fleet = Asking(a=60, b=39)
    fleet.asks("a", 60, 10)
    fleet.fleet.apply(PodGone("uid-a"))
    assert donors(fleet.fleet.ledger.nodes["n1"], LATER) == []


# A VM that needs nothing may sleep, and is asked for that instead.
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=6))
@example([(4, 1), (30, 1), (30, 1)])
@example([(8, 1), (3, 1), (30, 1), (30, 1)])
def test_all_together_are_asked_for_what_is_missing(vms: list[tuple[int, int]]) -> None:
    """Each for no more than it offers, and all for less than one step too much; the ledger does not change."""
    fleet = Asking(**{f"v{number}": float(size) for number, (size, _) in enumerate(vms)})
    node_account = fleet.fleet.ledger.nodes["n1"]
    for is_all_said in (False, True):
        missing, asked = lacking(node_account, LATER), ZERO
        for number, (size, needs) in enumerate(vms):
            shrink_to = fleet.asks(f"v{number}", size, float(needs))
            if shrink_to is not None:
                assert amount(min(size, needs)).within(shrink_to)
                asked = asked + (amount(size) - shrink_to)
        assert (lacking(node_account, LATER), violations(fleet.fleet.ledger)) == (missing, [])
        if is_all_said:
            offered = Resources.sum(amount(size).minus_or_zero(amount(needs)) for size, needs in vms)
            assert missing.at_most(offered).within(asked)
            assert asked.within(missing + UNIT if missing.any else ZERO)
