"""The CPU limit of a VM's pod follows the reservation: an image that ignores its size gets no more CPU (B.10)."""

from __future__ import annotations

from protocol.units import MilliCpu
from scheduler_plugin.ledger.accounts.pod_requests import LIMIT_RETRY
from scheduler_plugin.ledger.events import RequestsFollow
from scheduler_plugin.ledger.request_orders import QEMU_CPU
from tests.scheduler_plugin.ledger.fleet import amount
from tests.scheduler_plugin.ledger.requested import Requested


def limited() -> Requested:
    at = Requested()
    at.ledger.apply(RequestsFollow(True, limits_cpu=True), at.now)
    return at


def limit(cpus: int) -> MilliCpu:
    return MilliCpu.cores(cpus) + QEMU_CPU


def test_pod_is_limited_to_what_is_reserved() -> None:
    """A guest that boots with two CPUs at ``use: 250m`` is limited by its container from the start."""
    at = limited()
    assert at.ledger.pods_to_resize() == ["uid-a"]
    first = at.due()
    assert first is not None
    assert (first.size, first.cpu_limit) == (amount(1), limit(1))
    at.written(first)
    assert (at.ledger.pods_to_resize(), at.due()) == ([], None)


def test_limit_and_permit_share_write() -> None:
    at = limited()
    at.written(at.due())
    raised = at.raising(amount(4))
    assert raised is not None
    assert (raised.size, raised.cpu_limit) == (amount(4), limit(4))
    assert at.grant(amount(4)) == amount(1)
    at.written(raised)
    assert at.grant(amount(4)) == amount(4)


def test_limit_comes_down_with_requests() -> None:
    at = Requested(asked=amount(4), allocated=amount(4), by_us=amount(4), cpu_limit=limit(4))
    at.ledger.apply(RequestsFollow(True, limits_cpu=True), at.now)
    lowered = at.due()
    assert lowered is not None
    assert (lowered.size, lowered.cpu_limit) == (amount(1), limit(1))


def test_limit_that_does_not_stay_is_written_seldom() -> None:
    """A webhook may drop it; no other write to the pod waits for that."""
    at = limited()
    assert at.due() is not None
    assert at.due() is None
    at.pass_time(LIMIT_RETRY - 1)
    assert (at.due(), at.ledger.pods_to_resize()) == (None, ["uid-a"])
    at.pass_time(2)
    assert at.due() is not None


def test_limits_are_left_alone_unless_asked_for() -> None:
    at = Requested()
    assert (at.ledger.pods_to_resize(), at.due()) == ([], None)
    raised = at.raising(amount(4))
    assert raised is not None
    assert raised.cpu_limit is None


def test_limit_that_follows_no_more_bars_nothing() -> None:
    """Kubernetes does not allow removing a limit, so it is raised above what the VM can use."""
    at = Requested(cpu_limit=limit(1))
    maximum = at.vm.maximum.cpu + QEMU_CPU
    for follows in (True, False):
        at.ledger.apply(RequestsFollow(follows), at.now)
        assert at.ledger.pods_to_resize() == ["uid-a"]
    freed = at.due()
    assert freed is not None
    assert (freed.size, freed.cpu_limit) == (amount(1), maximum)
    at.written(freed)
    assert (at.ledger.pods_to_resize(), at.due()) == ([], None)


def test_limit_waits_while_the_api_cannot_resize() -> None:
    at = Requested(cpu_limit=limit(1))
    at.ledger.apply(RequestsFollow(True, can=False, limits_cpu=True), at.now)
    assert (at.ledger.pods_to_resize(), at.due()) == ([], None)
