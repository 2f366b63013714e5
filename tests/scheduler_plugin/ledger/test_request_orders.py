"""The requests of a VM's pod follow its reservation: up before the permit, down after it (B.10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import ZERO
from scheduler_plugin.ledger import (
    ClaimState,
    NotReadyError,
    RequestsSeen,
    ResizePod,
    RunnerRequests,
)
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
    assert (at.ledger.is_awaited("uid-a"), at.grant(amount(4))) == (True, amount(1))
    assert problem_of(at) == "the kubelet has not set aside yet what the pod requests"
    at.kubelet_answers()
    assert at.look() == (RequestsSeen("uid-a"),)
    assert (at.ledger.is_awaited("uid-a"), at.grant(amount(4)), problem_of(at)) == (False, amount(4), "")


def test_what_the_requests_lack_is_no_pressure() -> None:
    at = Requested()
    assert at.grant(amount(4)) == amount(1)
    assert at.ledger.nodes["n1"].unmet == ZERO
    at = Requested(beside=(plain_pod("other", amount(7), "n1"),))
    assert at.grant(amount(4)) == amount(1)
    assert at.ledger.nodes["n1"].unmet == amount(2)


def test_room_that_is_held_for_a_resize_is_not_given_to_another() -> None:
    at = Requested()
    assert at.raising(amount(9)) == order(9, 1)
    assert at.ledger.rooms["n1"].free == ZERO
    assert at.ledger.explain("uid-a", at.now).floors["a resize of the pod that is on its way"] == amount(9)


def test_requests_are_raised_only_as_far_as_the_node_has_room() -> None:
    at = Requested(beside=(plain_pod("other", amount(6), "n1"),))
    assert at.raising(amount(5)) == order(3, 1)


def test_what_is_covered_by_requests_costs_no_write() -> None:
    at = Requested(asked=amount(4), allocated=amount(4))
    at.version = 2
    at.look()
    assert (at.raising(amount(3)), at.grant(amount(3))) == (None, amount(3))


def test_a_container_whose_kubelet_says_nothing_has_what_it_asks_for() -> None:
    at = Requested(allocated=None)
    raised = at.raising(amount(2))
    assert raised is not None
    assert at.lands(raised)
    at.look()
    assert at.grant(amount(2)) == amount(2)


def test_requests_come_down_after_the_guest_and_the_reservation() -> None:
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


def test_a_permit_does_not_rely_on_requests_that_are_being_lowered() -> None:
    at = Requested()
    at.written(at.raising(amount(4)))
    at.pass_time(60)
    lowered = at.due()
    assert lowered is not None
    assert at.grant(amount(3)) == amount(1)
    assert at.raising(amount(3)) == replace(lowered, size=amount(4))


def test_a_growth_that_crosses_a_shrink_waits_until_the_kubelet_has_looked_again() -> None:
    """It may have let go of what it still says that it has set aside, and given it to another pod."""
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
    assert (at.asked, at.allocated, at.ledger.is_awaited("uid-a")) == (amount(4), amount(4), True)
    assert at.grant(amount(4)) == amount(1)
    assert problem_of(at) == "the kubelet has not set aside yet what the pod requests"
    assert at.ledger.explain("uid-a", at.now).requests_secured == amount(1)
    at.is_seen = True
    at.kubelet_answers()
    assert at.look() == (RequestsSeen("uid-a"),)
    assert (at.ledger.is_awaited("uid-a"), at.grant(amount(4)), problem_of(at)) == (False, amount(4), "")


def test_requests_that_were_raised_in_vain_stay_a_moment_for_an_agent_that_asks_again() -> None:
    at = Requested()
    at.written(at.raising(amount(4)))
    assert at.due() is None
    at.pass_time(5)
    assert at.due() == order(1, at.version)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_write_without_an_answer_counts_both_ways_until_another_version_is_seen(is_known: bool) -> None:
    at = Requested()
    raised = at.raising(amount(4))
    assert raised is not None
    assert (at.grant(amount(4)), at.fleet.reserved("a")) == (amount(1), amount(4))
    at.look()
    at.ledger.requests_unanswered(raised, "failed calling webhook")
    said = "it is not known whether the pod's requests were changed: failed calling webhook"
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
    assert (at.ledger.is_unheld("uid-a"), problem_of(at)) == (True, "the pod requests less than its VM needs")
    raised = at.due()
    assert raised == order(1, 1)
    while raised is not None:
        at.refused(raised, "403: exceeded quota")
        raised = at.due()
    at.pass_time(5)
    at.written(at.due())
    assert (at.ledger.is_unheld("uid-a"), at.due()) == (False, None)


def test_no_pod_is_asked_to_have_more_than_its_node() -> None:
    at = Requested(vm=vm("a", amount(12), actual=amount(12)))
    raised = at.due()
    assert raised == order(10, 1)
    at.written(raised)
    assert (at.due(), at.ledger.is_unheld("uid-a")) == (None, False)
    assert problem_of(at) == "the pod requests less than its VM needs: its node has no more"


def test_where_a_node_has_nothing_to_give_requests_stay() -> None:
    """A pod that requests nothing would have another class of service."""
    at = Requested(vm=vm("a", amount(12), actual=amount(12)))
    at.fleet.did(at.ledger.see_node(node(total=0)))
    assert at.due() is None


def test_a_node_that_is_gone_sets_no_limit() -> None:
    at = Requested(vm=vm("a", amount(12), actual=amount(12)))
    at.fleet.did(at.ledger.lose_node("n1"))
    assert at.due() == order(12, 1)


def test_requests_go_down_with_a_node_that_shrinks_and_up_with_it_again() -> None:
    at = Requested(asked=amount(4), allocated=amount(4), vm=vm("a", amount(4), actual=amount(4), permit=amount(4)))
    at.fleet.did(at.ledger.see_node(node(total=3)))
    at.written(at.due())
    assert (at.asked, at.grant(amount(4)), at.grant(amount(5))) == (amount(3), amount(4), amount(4))
    at.fleet.did(at.ledger.see_node(node()))
    at.written(at.due())
    at.written(at.raising(amount(5)))
    assert at.grant(amount(5)) == amount(5)


def test_a_restarted_scheduler_does_not_rely_on_requests_that_a_write_may_yet_lower() -> None:
    at = Requested()
    at.written(at.raising(amount(4)))
    at.start()
    assert at.grant(amount(3)) == amount(1)
    at.pass_time(10)
    assert at.grant(amount(3)) == amount(3)


def test_a_restarted_scheduler_hears_the_kubelets_answer_to_what_was_asked_before_it() -> None:
    at = Requested(asked=amount(4), allocated=amount(1))
    at.pass_time(10)
    assert (at.raising(amount(4)), at.ledger.is_awaited("uid-a")) == (None, True)
    at.kubelet_answers()
    assert at.look() == (RequestsSeen("uid-a"),)
    assert (at.ledger.is_awaited("uid-a"), at.grant(amount(4))) == (False, amount(4))


def test_requests_of_a_vm_that_moves_are_not_changed() -> None:
    at = Requested(asked=amount(4), allocated=amount(4))
    at.pass_time(10)
    at.fleet.did(at.ledger.see_migration(migration("a"), LATER))
    assert (at.due(), at.raising(amount(5)), at.ledger.requests_astray()) == (None, None, ["uid-a"])


def test_where_requests_do_not_follow_nothing_is_written_and_permits_are_as_ever() -> None:
    at = Requested()
    at.ledger.follow_requests(False)
    assert not at.ledger.follows_requests
    assert (at.raising(amount(4)), at.due(), at.grant(amount(4))) == (None, None, amount(4))
    assert (at.ledger.requests_astray(), at.ledger.is_unheld("uid-a")) == ([], False)
    assert at.ledger.explain("uid-a", at.now).requests is None


def test_pods_that_do_not_follow_a_vm_are_left_alone() -> None:
    fleet = Fleet(node(), vm("a", amount(1)), vm_pod("a", "n1"), plain_pod("b", amount(1), "n1"))
    ledger = fleet.ledger
    ledger.follow_requests(True)
    at = Requested()
    for uid in ("uid-a", "uid-b", "gone"):
        assert ledger.raise_requests(uid, at.request(amount(4)), LATER) == (None, ())
        assert ledger.requests_due(uid, LATER) == (None, ())
        assert (ledger.is_unheld(uid), ledger.is_awaited(uid)) == (False, False)
    assert fleet.grant("a", amount(2), number=1) == amount(2)
    assert ledger.explain("uid-a", LATER).requests_problem == (
        "the pod's requests are left as they are: it has none, or its guest's container has limits or restarts"
    )
    assert ledger.requests_refused(order(1, 1), "why", LATER) == ()
    ledger.requests_unanswered(order(1, 1), "why")
    assert ledger.requests_refused(ResizePod("gone", name("x"), amount(1), ""), "why", LATER) == ()


def test_an_agent_in_a_pod_that_the_vm_has_left_raises_nothing() -> None:
    at = Requested(vm=vm("a", amount(1), pod=name("another-pod")))
    assert at.raising(amount(4)) is None


def test_a_vm_whose_object_is_not_known_raises_nothing() -> None:
    pod = Requested().pod
    fleet = Fleet(node(), pod)
    fleet.ledger.follow_requests(True)
    assert fleet.ledger.requests_due("uid-a", LATER) == (None, ())
    assert fleet.ledger.raise_requests("uid-a", Requested().request(amount(4)), LATER) == (None, ())


def waiting(asked: float = 0.1) -> tuple[Fleet, RunnerRequests]:
    fleet = Fleet(node(total=2), vm("a", amount(3)))
    fleet.ledger.follow_requests(True)
    return fleet, RunnerRequests(amount(asked), version="5")


def test_a_pod_that_waits_requests_what_its_vm_needs() -> None:
    fleet, runner = waiting()
    pod = replace(vm_pod("a"), runner=runner)
    assert fleet.ledger.requests_of_waiting(pod) == (order(3, 5),)
    mixed = replace(pod, runner=RunnerRequests(amount(0.1, 4), version="5"))
    assert [each.size for each in fleet.ledger.requests_of_waiting(mixed)] == [amount(3), amount(3, 4)]
    fleet.did(fleet.ledger.see_vm(vm("a", amount(2), version=2), LATER))
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
    ledger.follow_requests(True)
    pod = replace(vm_pod("a"), runner=RunnerRequests(amount(0.1), version="5"))
    ledger.reserve(pod, "n1")
    assert ledger.is_unheld("uid-a")
    raised, effects = ledger.requests_due("uid-a", LATER)
    assert raised == order(3, 5)
    fleet.did(effects)
    fleet.did(ledger.see_pod(replace(pod, requests=amount(3), runner=RunnerRequests(amount(3), version="6"))))
    claim = ledger.claims["uid-a"]
    assert (claim.state, claim.reserved, ledger.is_unheld("uid-a")) == (ClaimState.TENTATIVE, amount(3), False)


def test_before_a_pod_is_seen_on_its_node_nothing_above_the_reservation_is_permitted() -> None:
    fleet = Fleet(node(), vm("a", amount(1)))
    fleet.ledger.follow_requests(True)
    pod = replace(vm_pod("a"), requests=amount(4), runner=RunnerRequests(amount(4), version="5"))
    fleet.ledger.reserve(pod, "n1")
    assert fleet.grant("a", amount(3), number=1) == amount(1)
    fleet.did(fleet.ledger.see_pod(replace(pod, node="n1", runner=RunnerRequests(amount(4), version="6"))))
    assert fleet.grant("a", amount(3), number=2) == amount(3)


def test_what_was_asked_in_vain_long_ago_is_forgotten_though_it_is_asked_again() -> None:
    at = Requested()
    assert at.raising(amount(9)) == order(9, 1)
    for _ in range(4):
        at.pass_time(4)
        assert at.raising(amount(2)) == order(2, 1)
    assert at.fleet.reserved("a") == amount(2)
