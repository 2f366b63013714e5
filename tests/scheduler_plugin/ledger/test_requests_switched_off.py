"""Once requests no longer follow VMs, raised requests return to each pod's original ones (B.10)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.events import RequestsFollow
from scheduler_plugin.ledger.outcomes import ResizePod
from tests.scheduler_plugin.ledger.fleet import amount, name, vm
from tests.scheduler_plugin.ledger.requested import Requested, order


def switched_off(first: Resources | None) -> Requested:
    """A VM of 4 whose pod was created with ``first`` and raised since; the setting is off, and the process is new."""
    at = Requested(vm=vm("a", amount(4), actual=amount(4), permit=amount(4)))
    at.vm = replace(at.vm, first_requests=first)
    at.start()
    at.written(at.due())
    at.start()
    at.ledger.apply(RequestsFollow(False), at.now)
    at.pass_time(10)
    return at


def test_disabling_restores_original_requests() -> None:
    at = switched_off(amount(0.5, 1))
    assert at.ledger.pods_to_resize() == ["uid-a"]
    lowered = at.due()
    assert lowered == ResizePod("uid-a", name("a-pod"), amount(0.5, 1), "3")
    at.written(lowered)
    assert (at.due(), at.ledger.pods_to_resize(), at.fleet.reserved("a")) == (None, [], amount(4))


def test_re_enabling_distrusts_falling_requests() -> None:
    at = Requested(asked=amount(4), allocated=amount(4), by_us=amount(4))
    at.vm = replace(at.vm, first_requests=amount(0.5))
    at.start()
    at.ledger.apply(RequestsFollow(False), at.now)
    at.pass_time(10)
    assert at.due() == order(0.5, 1)
    at.ledger.apply(RequestsFollow(True), at.now)
    assert at.grant(amount(3)) == amount(1)


@pytest.mark.parametrize("first", [None, ZERO, amount(4), amount(9)])
def test_disabling_keeps_unknown_requests(
    first: Resources | None,
) -> None:
    """A pod created without requests would have another QoS class, so the VM's spec must have changed since."""
    at = switched_off(first)
    assert (at.ledger.pods_to_resize(), at.due()) == ([], None)


def test_switched_off_what_an_operator_has_written_stays() -> None:
    at = switched_off(amount(1))
    at.by_us, at.version = amount(4, 0), 9
    at.look()
    assert at.due() == ResizePod("uid-a", name("a-pod"), amount(1, 4), "9")
    at.asked, at.by_us, at.version = amount(4), ZERO, 10
    at.look()
    assert (at.ledger.pods_to_resize(), at.due()) == ([], None)


def test_switched_off_a_refusal_is_tried_again_later() -> None:
    at = switched_off(amount(1))
    lowered = at.due()
    assert lowered is not None
    at.refused_all_due("403: no")
    assert at.due() is None
    at.pass_time(5)
    assert at.due() == lowered


def test_unresizable_api_keeps_requests() -> None:
    at = switched_off(amount(0.5, 1))
    at.ledger.apply(RequestsFollow(True, can=False), at.now)
    assert (at.ledger.follows_requests, at.ledger.pods_to_resize(), at.due()) == (False, [], None)
