"""The ledger's record of room given back, and of what denied VMs wait for (B.17)."""

from __future__ import annotations

from protocol.messages import AgentRequest
from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import FreedRoom
from scheduler_plugin.ledger.accounts.sharing import MAX_NAMED, SHOWN_FOR
from scheduler_plugin.ledger.events import PermitRequested
from tests.scheduler_plugin.ledger.fleet import LATER, amount, name
from tests.scheduler_plugin.ledger.test_giving import Asking


class Books(Asking):
    """The node's VMs, and the explanation of each."""

    def last_freed(self, of: str, seconds: float = 0.0) -> FreedRoom | None:
        return self.fleet.ledger.explain(f"uid-{of}", Instant(LATER + seconds)).last_freed

    def promised_to(self, of: str, seconds: float = 0.0) -> Resources:
        return self.fleet.ledger.explain(f"uid-{of}", Instant(LATER + seconds)).promised


def at(seconds: float) -> Instant:
    return Instant(LATER + seconds)


def test_gift_names_those_that_lacked_most() -> None:
    fleet = Books(a=60, b=10, c=10, d=10, e=10)
    for of, size in (("b", 12), ("c", 16), ("d", 15), ("e", 14)):
        fleet.asks(of, size)
    assert fleet.asks("a", 60, 20) == amount(20)
    assert fleet.last_freed("a") is None
    fleet.asks("a", 40, 20, at=at(5))
    assert fleet.last_freed("a", 5) == FreedRoom(amount(20), at(5), (name("c"), name("d"), name("e")))
    assert MAX_NAMED == 3


def test_gift_to_nearly_full_node_names_nobody() -> None:
    fleet = Books(a=40, b=25)
    fleet.asks("a", 40, 10)
    fleet.asks("a", 38, 10, at=at(5))
    assert fleet.last_freed("a", 5) == FreedRoom(amount(2), at(5))


def test_repeated_request_is_no_other_gift() -> None:
    fleet = Books(a=60, b=40)
    fleet.asks("b", 50)
    fleet.asks("a", 60, 10)
    for seconds in (5, 10, 15):
        fleet.asks("a", 40, 40, at=at(seconds))
    assert fleet.last_freed("a", 15) == FreedRoom(amount(20), at(5), (name("b"),))


def test_memory_follows_cpu_in_one_gift() -> None:
    fleet = Books(a=60, b=39)
    fleet.asks("b", 60)
    fleet.asks("a", 60, 10)
    for number, mem in enumerate((60, 60, 40)):
        fleet.fleet.resize("a", amount(20, mem))
        request = AgentRequest(
            name("a-pod"), amount(20, mem), amount(60, 60), sequence=5 + number, needs=amount(10, 10)
        )
        fleet.fleet.store(fleet.fleet.ledger.apply(PermitRequested("uid-a", request), at(5 + number)))
    assert fleet.last_freed("a", 7) == FreedRoom(amount(40, 20), at(7), (name("b"),))


def test_unasked_vm_gives_nothing() -> None:
    fleet = Books(a=30, b=20)
    fleet.asks("a", 30, 10)
    fleet.asks("a", 20, 10, at=at(5))
    assert fleet.last_freed("a", 5) is None


def test_gift_is_shown_for_an_hour() -> None:
    fleet = Books(a=60, b=39)
    fleet.asks("a", 60, 10)
    fleet.asks("a", 40, 10, at=at(5))
    assert fleet.last_freed("a", 5 + SHOWN_FOR - 1) is not None
    assert fleet.last_freed("a", 5 + SHOWN_FOR) is None


def test_promise_is_no_more_than_lack() -> None:
    fleet = Books(a=60, b=35)
    fleet.asks("b", 50)
    assert fleet.promised_to("b") == ZERO
    fleet.asks("a", 60, 58)
    assert fleet.promised_to("b") == amount(2)
    fleet.asks("a", 60, 10, at=at(5))
    assert fleet.promised_to("b", 5) == amount(10)
    assert (fleet.promised_to("a", 5), fleet.promised_to("b", Seconds(30.0))) == (ZERO, ZERO)
