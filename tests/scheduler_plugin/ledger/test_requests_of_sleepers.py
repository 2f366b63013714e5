"""The requests of a sleeping VM's pod are lowered to almost nothing, and raised before the VM may wake (B.10, B.18)."""

from __future__ import annotations

from dataclasses import replace

from protocol.guest.sleep import ASLEEP, WAKING
from protocol.units import ZERO
from scheduler_plugin.ledger.accounts.pod_requests import MIN_REQUESTS
from scheduler_plugin.ledger.events import PodSeen
from tests.scheduler_plugin.ledger.fleet import amount, plain_pod, vm
from tests.scheduler_plugin.ledger.requested import Requested


def asleep() -> Requested:
    """A VM of 4 sleeps, and its pod's requests have followed."""
    running = vm("a", amount(4), actual=amount(4), permit=amount(4))
    at = Requested(asked=amount(4), allocated=amount(4), vm=running)
    at.grant(amount(4))
    at.is_in_phase(ASLEEP)
    at.pass_time(60)
    at.grant(ZERO)
    at.pass_time(60)
    at.grant(ZERO)
    at.written(at.due())
    return at


def test_requests_of_a_sleeper_fall_to_the_least() -> None:
    """Not to zero: that would change the pod's QoS class."""
    at = asleep()
    assert at.asked == MIN_REQUESTS
    assert at.fleet.reserved("a") == MIN_REQUESTS
    assert (at.due(), at.ledger.pods_to_resize()) == (None, [])


def test_requests_rise_before_the_permit_to_wake() -> None:
    at = asleep()
    at.is_in_phase(WAKING)
    assert at.decide(amount(4)).permit == ZERO
    order = at.raising(amount(4))
    assert order is not None
    assert order.size == amount(4)
    assert at.fleet.reserved("a") == amount(4)
    at.written(order)
    assert at.grant(amount(4)) == amount(4)


def test_kubelet_that_gives_a_part_wakes_nobody() -> None:
    """Requests that cover only a part of the size are no permit."""
    at = asleep()
    at.is_in_phase(WAKING)
    order = at.raising(amount(4))
    assert order is not None
    at.lands(order)
    at.allocated = amount(2)
    at.look()
    assert at.grant(amount(4)) == ZERO


def test_requests_rise_whole_or_not_at_all() -> None:
    """No room is taken for a part of a size, with which no guest can wake."""
    at = asleep()
    at.beside = (plain_pod("x", amount(7), "n1"),)
    at.start()
    at.is_in_phase(WAKING)
    assert at.raising(amount(4)) is None


def test_claim_falls_to_what_lies_around_the_guest() -> None:
    at = asleep()
    at.fleet.apply(PodSeen(replace(at.pod, overhead=amount(0.5), requests=at.pod.requests + amount(0.5))))
    assert at.fleet.reserved("a") == MIN_REQUESTS + amount(0.5)
