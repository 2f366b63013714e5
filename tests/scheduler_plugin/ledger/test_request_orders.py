"""The requests of a VM's pod follow its reservation: raised before the permit, lowered after it (B.10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import ZERO
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.events import (
    BindRequested,
    MigrationSeen,
    NodeGone,
    NodeSeen,
    PodSeen,
    RaiseRequested,
    RequestsFollow,
    ResizeDue,
    ResizeOutcomeUnknown,
    ResizeRefused,
    VmSeen,
)
from scheduler_plugin.ledger.facts import RunnerRequests
from scheduler_plugin.ledger.outcomes import NotReadyError, PodRequestsChanged, ResizePod
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, migration, name, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.ledger.requested import Requested, order, problem_of


def test_nothing_is_permitted_before_the_requests_hold_it() -> None:
    at = Requested()
    assert at.grant(amount(4)) == amount(1)
    raised = at.raising(amount(4))
    assert raised == order(4, 1)
    assert at.fleet.reserved("a") == amount(4)
    assert at.grant(amount(4)) == amount(1)
    assert at.lands(raised)
    assert at.look() == (), "there is nothing to wait for before"
    assert (at.ledger.awaits_kubelet("uid-a"), at.grant(amount(4))) == (True, amount(1))
    assert problem_of(at) == "the kubelet has not applied the pod's requests yet"
    at.kubelet_answers()
    assert at.look() == (PodRequestsChanged("uid-a"),)
    assert (at.ledger.awaits_kubelet("uid-a"), at.grant(amount(4)), problem_of(at)) == (False, amount(4), "")


def test_what_the_requests_lack_is_no_pressure() -> None:
    at = Requested()
    assert at.grant(amount(4)) == amount(1)
    assert at.ledger.nodes["n1"].unmet == ZERO
    at = Requested(beside=(plain_pod("other", amount(7), "n1"),))
    assert at.grant(amount(4)) == amount(1)
    assert at.ledger.nodes["n1"].unmet == amount(2)


def test_resize_room_is_exclusive() -> None:
    at = Requested()
    assert at.raising(amount(9)) == order(9, 1)
    assert at.ledger.rooms["n1"].free == ZERO
    assert at.ledger.explain("uid-a", at.now).floors["pod resize in progress"] == amount(9)


def test_requests_rise_within_node_room() -> None:
    at = Requested(beside=(plain_pod("other", amount(6), "n1"),))
    assert at.raising(amount(5)) == order(3, 1)


def test_what_is_covered_by_requests_costs_no_write() -> None:
    at = Requested(asked=amount(4), allocated=amount(4))
    at.version = 2
    at.look()
    assert (at.raising(amount(3)), at.grant(amount(3))) == (None, amount(3))


def test_silent_kubelet_counts_requests() -> None:
    at = Requested(allocated=None)
    raised = at.raising(amount(2))
    assert raised is not None
    assert at.lands(raised)
    at.look()
    assert at.grant(amount(2)) == amount(2)


def test_requests_fall_last() -> None:
    at = Requested()
    at.written(at.raising(amount(4)))
    assert at.grant(amount(4)) == amount(4)
    at.use(amount(4))
    at.pass_time(60)
    assert at.grant(amount(2)) == amount(2)
    assert at.due() is None
    at.use(amount(2))
    lowered = at.due()
    assert lowered is not None
    assert lowered.size == amount(2)
    assert at.fleet.reserved("a") == amount(4)
    at.written(lowered)
    assert (at.fleet.reserved("a"), at.due()) == (amount(2), None)


def test_permit_ignores_falling_requests() -> None:
    at = Requested()
    at.written(at.raising(amount(4)))
    at.pass_time(60)
    lowered = at.due()
    assert lowered is not None
    assert at.grant(amount(3)) == amount(1)
    assert at.raising(amount(3)) == replace(lowered, size=amount(4))


def test_growth_after_shrink_waits_for_kubelet() -> None:
    """The kubelet may already have given another pod room that it still reports as allocated to this one."""
    at = Requested(asked=amount(4), allocated=amount(4))
    at.pass_time(10)
    lowered = at.due()
    assert lowered is not None
    at.is_seen = False
    assert at.lands(lowered)
    at.look()
    raised = at.raising(amount(4))
    assert raised is not None
    assert at.lands(raised)
    at.look()
    assert (at.asked, at.allocated, at.ledger.awaits_kubelet("uid-a")) == (amount(4), amount(4), True)
    assert at.grant(amount(4)) == amount(1)
    assert problem_of(at) == "the kubelet has not applied the pod's requests yet"
    assert at.ledger.explain("uid-a", at.now).requests_secured == amount(1)
    at.is_seen = True
    at.kubelet_answers()
    assert at.look() == (PodRequestsChanged("uid-a"),)
    assert (at.ledger.awaits_kubelet("uid-a"), at.grant(amount(4)), problem_of(at)) == (False, amount(4), "")


def test_unused_requests_linger_briefly() -> None:
    at = Requested()
    at.written(at.raising(amount(4)))
    assert at.due() is None
    at.pass_time(5)
    assert at.due() == order(1, at.version)


@pytest.mark.parametrize("is_known", [True, False])
def test_unanswered_write_counts_both_ways(is_known: bool) -> None:
    at = Requested()
    raised = at.raising(amount(4))
    assert raised is not None
    assert (at.grant(amount(4)), at.fleet.reserved("a")) == (amount(1), amount(4))
    at.look()
    at.ledger.apply(ResizeOutcomeUnknown(raised, "failed calling webhook"), at.now)
    said = "unknown whether the pod's requests were changed: failed calling webhook"
    assert (at.fleet.reserved("a"), problem_of(at)) == (amount(4), said)
    if is_known:
        at.version += 1
        at.look()
        assert problem_of(at) == "the pod requests less than its VM needs"
    else:
        at.pass_time(10)
        assert problem_of(at) == said
    assert at.fleet.reserved("a") == amount(1)
    assert at.raising(amount(2)) == order(2, at.version)


def test_requests_below_the_reservation_are_raised_to_it() -> None:
    at = Requested(asked=amount(0.1), allocated=amount(0.1))
    assert (at.ledger.lacks_requests("uid-a"), problem_of(at)) == (True, "the pod requests less than its VM needs")
    raised = at.due()
    assert raised == order(1, 1)
    while raised is not None:
        at.refused(raised, "403: exceeded quota")
        raised = at.due()
    at.pass_time(5)
    at.written(at.due())
    assert (at.ledger.lacks_requests("uid-a"), at.due()) == (False, None)


def test_requests_never_exceed_node() -> None:
    at = Requested(vm=vm("a", amount(12), actual=amount(12)))
    raised = at.due()
    assert raised == order(10, 1)
    at.written(raised)
    assert (at.due(), at.ledger.lacks_requests("uid-a")) == (None, False)
    assert problem_of(at) == "the pod requests less than its VM needs: its node is too small"


def test_full_node_keeps_requests() -> None:
    """A pod with zero requests would have another QoS class."""
    at = Requested(vm=vm("a", amount(12), actual=amount(12)))
    at.fleet.apply(NodeSeen(node(total=0)))
    assert at.due() is None


def test_a_node_that_is_gone_sets_no_limit() -> None:
    at = Requested(vm=vm("a", amount(12), actual=amount(12)))
    at.fleet.apply(NodeGone("n1"))
    assert at.due() == order(12, 1)


def test_requests_follow_node_size() -> None:
    at = Requested(asked=amount(4), allocated=amount(4), vm=vm("a", amount(4), actual=amount(4), permit=amount(4)))
    at.fleet.apply(NodeSeen(node(total=3)))
    at.written(at.due())
    assert (at.asked, at.grant(amount(4)), at.grant(amount(5))) == (amount(3), amount(4), amount(4))
    at.fleet.apply(NodeSeen(node()))
    at.written(at.due())
    at.written(at.raising(amount(5)))
    assert at.grant(amount(5)) == amount(5)


def test_restart_distrusts_lowerable_requests() -> None:
    at = Requested()
    at.written(at.raising(amount(4)))
    at.start()
    assert at.grant(amount(3)) == amount(1)
    at.pass_time(10)
    assert at.grant(amount(3)) == amount(3)


def test_restart_hears_kubelet_verdict() -> None:
    at = Requested(asked=amount(4), allocated=amount(1))
    at.pass_time(10)
    assert (at.raising(amount(4)), at.ledger.awaits_kubelet("uid-a")) == (None, True)
    at.kubelet_answers()
    assert at.look() == (PodRequestsChanged("uid-a"),)
    assert (at.ledger.awaits_kubelet("uid-a"), at.grant(amount(4))) == (False, amount(4))


def test_moving_vm_keeps_requests() -> None:
    at = Requested(asked=amount(4), allocated=amount(4))
    at.pass_time(10)
    at.fleet.apply(MigrationSeen(migration("a")), LATER)
    assert (at.due(), at.raising(amount(5)), at.ledger.pods_to_resize()) == (None, None, ["uid-a"])


def test_fixed_requests_write_nothing() -> None:
    at = Requested()
    at.ledger.apply(RequestsFollow(False), at.now)
    assert not at.ledger.follows_requests
    assert (at.raising(amount(4)), at.due(), at.grant(amount(4))) == (None, None, amount(4))
    assert (at.ledger.pods_to_resize(), at.ledger.lacks_requests("uid-a")) == ([], False)
    assert at.ledger.explain("uid-a", at.now).requests is None


def test_pods_without_vm_are_left_alone() -> None:
    fleet = Fleet(node(), vm("a", amount(1)), vm_pod("a", "n1"), plain_pod("b", amount(1), "n1"))
    ledger = fleet.ledger
    ledger.apply(RequestsFollow(True), LATER)
    at = Requested()
    for uid in ("uid-a", "uid-b", "gone"):
        assert ledger.apply(RaiseRequested(uid, at.request(amount(4))), LATER) == (None, ())
        assert ledger.apply(ResizeDue(uid), LATER) == (None, ())
        assert (ledger.lacks_requests(uid), ledger.awaits_kubelet(uid)) == (False, False)
    assert fleet.grant("a", amount(2), number=1) == amount(2)
    assert ledger.explain("uid-a", LATER).requests_problem == (
        "the pod's requests are not changed: it has none, or its guest container has limits or restarts"
    )
    assert ledger.apply(ResizeRefused(order(1, 1), "why"), LATER) == ()
    ledger.apply(ResizeOutcomeUnknown(order(1, 1), "why"), LATER)
    assert ledger.apply(ResizeRefused(ResizePod("gone", name("x"), amount(1), ""), "why"), LATER) == ()


def test_agent_in_left_pod_raises_nothing() -> None:
    at = Requested(vm=vm("a", amount(1), pod=name("another-pod")))
    assert at.raising(amount(4)) is None


def test_unknown_vm_raises_no_requests() -> None:
    pod = Requested().pod
    fleet = Fleet(node(), pod)
    fleet.ledger.apply(RequestsFollow(True), LATER)
    assert fleet.ledger.apply(ResizeDue("uid-a"), LATER) == (None, ())
    assert fleet.ledger.apply(RaiseRequested("uid-a", Requested().request(amount(4))), LATER) == (None, ())


def waiting(asked: float = 0.1) -> tuple[Fleet, RunnerRequests]:
    fleet = Fleet(node(total=2), vm("a", amount(3)))
    fleet.ledger.apply(RequestsFollow(True), LATER)
    return fleet, RunnerRequests(amount(asked), version="5")


def test_waiting_pod_requests_need() -> None:
    fleet, runner = waiting()
    pod = replace(vm_pod("a"), runner=runner)
    assert fleet.ledger.requests_of_waiting(pod) == (order(3, 5),)
    mixed = replace(pod, runner=RunnerRequests(amount(0.1, 4), version="5"))
    assert [each.size for each in fleet.ledger.requests_of_waiting(mixed)] == [amount(3), amount(3, 4)]
    fleet.apply(VmSeen(vm("a", amount(2), version=2)), LATER)
    larger = fleet.ledger.requests_of_waiting(replace(pod, runner=RunnerRequests(amount(3))))
    assert [each.size for each in larger] == [amount(2)]
    assert fleet.ledger.requests_of_waiting(replace(pod, runner=RunnerRequests(amount(2)))) == ()
    assert fleet.ledger.requests_of_waiting(vm_pod("a")) == ()
    assert fleet.ledger.requests_of_waiting(replace(pod, vm=None)) == ()
    with pytest.raises(NotReadyError):
        fleet.ledger.requests_of_waiting(replace(pod, vm=name("unknown")))


def test_requests_are_raised_before_a_bind_is_sent() -> None:
    fleet, ledger = Fleet(node(), vm("a", amount(3))), None
    ledger = fleet.ledger
    ledger.apply(RequestsFollow(True), LATER)
    pod = replace(vm_pod("a"), runner=RunnerRequests(amount(0.1), version="5"))
    ledger.apply(BindRequested(pod, "n1"), LATER)
    assert ledger.lacks_requests("uid-a")
    raised, effects = ledger.apply(ResizeDue("uid-a"), LATER)
    assert raised == order(3, 5)
    fleet.did(effects)
    fleet.apply(PodSeen(replace(pod, requests=amount(3), runner=RunnerRequests(amount(3), version="6"))))
    claim = ledger.claims["uid-a"]
    assert (claim.state, claim.reserved, ledger.lacks_requests("uid-a")) == (ClaimState.TENTATIVE, amount(3), False)


def test_unseen_pod_limits_permit_to_reservation() -> None:
    fleet = Fleet(node(), vm("a", amount(1)))
    fleet.ledger.apply(RequestsFollow(True), LATER)
    pod = replace(vm_pod("a"), requests=amount(4), runner=RunnerRequests(amount(4), version="5"))
    fleet.ledger.apply(BindRequested(pod, "n1"), LATER)
    assert fleet.grant("a", amount(3), number=1) == amount(1)
    fleet.apply(PodSeen(replace(pod, node="n1", runner=RunnerRequests(amount(4), version="6"))))
    assert fleet.grant("a", amount(3), number=2) == amount(3)


def test_old_refusal_expires() -> None:
    at = Requested()
    assert at.raising(amount(9)) == order(9, 1)
    for _ in range(4):
        at.pass_time(4)
        assert at.raising(amount(2)) == order(2, 1)
    assert at.fleet.reserved("a") == amount(2)
