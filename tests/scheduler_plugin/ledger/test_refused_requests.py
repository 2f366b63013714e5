"""Requests refused by the API server or a kubelet: not permitted, retried, and harmless to everything else (B.10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.events import BindRequested, PodSeen, RequestsFollow, ResizeDue, ResizeRefused
from scheduler_plugin.ledger.facts import RunnerRequests
from scheduler_plugin.ledger.outcomes import RoomFreed
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.ledger.requested import Requested, order, problem_of


def test_denied_memory_keeps_no_cpu() -> None:
    at = Requested()
    at.written(at.raising(amount(4, 1)))
    for _ in range(10):
        at.pass_time(2)
        at.refused_all(amount(1, 4), "403: exceeded quota: memory")
        lowered = at.due()
        if lowered is not None:
            at.written(lowered)
    assert (at.asked, at.fleet.reserved("a")) == (amount(1), amount(1))


def test_refused_resize_frees_and_retries() -> None:
    at = Requested()
    at.refused_all(amount(4), "403: exceeded quota: compute")
    assert (at.fleet.reserved("a"), at.raising(amount(4)), at.grant(amount(4))) == (amount(1), None, amount(1))
    assert problem_of(at) == "the pod's requests were not raised: 403: exceeded quota: compute"
    at.pass_time(5)
    assert at.raising(amount(4)) == order(4, 1)
    at.refused(order(4, 1), "403: exceeded quota: compute")
    at.refused_all(amount(4), "403: exceeded quota: compute")
    at.pass_time(5)
    assert at.raising(amount(4)) is None
    at.pass_time(5)
    at.written(at.raising(amount(4)))
    assert (at.grant(amount(4)), problem_of(at)) == (amount(4), "")


def test_withdrawn_resize_reserves_nothing() -> None:
    """Another pod may have been placed there since; otherwise more than the node's total would be granted."""
    at = Requested()
    raised = at.raising(amount(4))
    assert raised is not None
    assert at.lands(raised)
    at.kubelet_refuses()
    at.fleet.apply(PodSeen(plain_pod("other", amount(8), "n1")))
    at.pass_time(5)
    assert at.due() == order(1, at.version, reverts="Infeasible")
    assert (at.fleet.reserved("a"), at.ledger.nodes["n1"].overcommit) == (amount(1), ZERO)


def test_refusal_ends_one_doubtful_write() -> None:
    at = Requested()
    assert at.raising(amount(4)) == order(4, 1)
    second = at.raising(amount(3))
    assert second == order(3, 1)
    at.refused(second, "")
    assert at.fleet.reserved("a") == amount(4)
    at.refused(second, "")
    assert at.fleet.reserved("a") == amount(4)


def gets_of(at: Requested, wanted: Resources, most: Resources) -> list[Resources]:
    """Attempts for an agent that asks this often, if a LimitRange allows ``most``."""
    found = []
    for _ in range(8):
        at.pass_time(0.5)
        while (raised := at.raising(wanted)) is not None:
            found.append(raised.size)
            if raised.size.within(most):
                at.written(raised)
                break
            over = raised.size.minus_or_zero(most)
            names = [name for name, part in (("cpu", over.cpu), ("memory", over.mem)) if part]
            at.refused(raised, "403: " + ", ".join(f"maximum {name} usage per Container is" for name in names))
        at.grant(wanted)
    return found


def test_partial_admission_is_granted() -> None:
    at = Requested()
    tried = gets_of(at, amount(8), amount(5, 9))
    assert tried == [
        amount(cpu, mem) for cpu, mem in ((8, 8), (1, 8), *((cpu, 8) for cpu in (4.5, 6.25, 5.25, 4.75, 5)))
    ]
    assert (at.grant(amount(8)), at.raising(amount(8))) == (amount(5, 8), None)
    assert problem_of(at) == "the pod's requests were not raised: 403: maximum cpu usage per Container is"


@pytest.mark.parametrize("most", [amount(9, 2), amount(1, 9), amount(2), amount(1), amount(7, 3)])
def test_admitted_size_is_found_quickly(most: Resources) -> None:
    at = Requested()
    tried = gets_of(at, amount(8), most)
    assert at.grant(amount(8)) == amount(8).at_most(most)
    assert len(tried) <= 12


def test_a_conflict_may_be_tried_at_once() -> None:
    at = Requested()
    raised = at.raising(amount(4))
    assert raised is not None
    at.refused(raised, "")
    at.version = 7
    at.look()
    assert at.raising(amount(4)) == order(4, 7)


def test_unresizable_pod_ignores_requests() -> None:
    at = Requested()
    raised = at.raising(amount(4))
    assert raised is not None
    at.refused(raised, "422: Pod running on node without support for resize", is_final=True)
    assert at.grant(amount(4)) == amount(4)
    assert (at.raising(amount(5)), at.due(), at.ledger.pods_to_resize()) == (None, None, [])
    assert problem_of(at) == (
        "the pod's requests cannot be changed, so permits do not wait for them: "
        "422: Pod running on node without support for resize"
    )


def test_deferred_resize_is_withdrawn() -> None:
    at = Requested(room=Resources.parse(2, "1Gi"))
    wanted, less = Resources.parse(4, "1Gi"), Resources.parse(2, "1Gi")
    at.written(at.raising(wanted))
    assert (at.ledger.awaits_kubelet("uid-a"), at.raising(wanted), at.grant(wanted)) == (False, None, amount(1))
    assert problem_of(at) == (
        "the kubelet has not granted the pod's requests: Deferred: Node didn't have enough resource: cpu"
    )
    withdrawn = at.due()
    assert withdrawn == order(1, at.version, "Deferred")
    at.written(withdrawn)
    assert (at.fleet.reserved("a"), at.raising(less)) == (amount(1), None)
    assert problem_of(at) == ("the pod's requests were not raised: Deferred: Node didn't have enough resource: cpu")
    at.pass_time(10)
    at.written(at.raising(less))
    assert (at.grant(less), problem_of(at)) == (less, "")


@pytest.mark.parametrize(("room", "gets"), [((9, 1), (4, 1)), ((1, 9), (1, 4)), ((9, 2), (4, 1))])
def test_refusal_is_per_resource(room: tuple[float, float], gets: tuple[float, float]) -> None:
    """The refusal names the resource that the node lacks. The agent asks again and gets the other one immediately."""
    at = Requested(room=amount(*room))
    at.written(at.raising(amount(4)))
    at.written(at.due())
    at.written(at.raising(amount(4)))
    assert (at.raising(amount(4)), at.grant(amount(4)), at.fleet.reserved("a")) == (None, amount(*gets), amount(*gets))
    assert problem_of(at).startswith("the pod's requests were not raised: Deferred")
    at.room = amount(9)
    at.pass_time(5)
    at.written(at.raising(amount(4)))
    assert (at.grant(amount(4)), problem_of(at)) == (amount(4), "")


@pytest.mark.parametrize(("can", "gets"), [("cpu", (4, 1)), ("mem", (1, 4)), ("neither", (1, 1))])
def test_unclear_refusal_tries_each_resource(can: str, gets: tuple[float, float]) -> None:
    at, tried = Requested(), []
    while (raised := at.raising(amount(4))) is not None:
        tried.append(raised.size)
        if raised.size == {"cpu": amount(4, 1), "mem": amount(1, 4)}.get(can):
            at.written(raised)
        else:
            at.refused(raised, "403: an operator's policy forbids it")
    assert tried == [amount(4), amount(4, 1), amount(1, 4)][: 2 if can == "cpu" else 3]
    assert at.grant(amount(4)) == amount(*gets)


def test_refused_resource_backs_off_alone() -> None:
    at, tried = Requested(room=amount(9, 1)), []
    for second in range(40):
        at.pass_time(1)
        wanted = amount(2 + second / 8, 4)
        raised = at.raising(wanted)
        if raised is not None:
            at.written(raised)
        if raised is not None and raised.size.mem > amount(1).mem:
            tried.append(second)
            at.written(at.due())
    assert tried == [0, 5, 15, 35]
    assert at.grant(amount(7, 4)) == amount(6.875, 1)


def test_needed_deferred_resize_is_kept() -> None:
    at = Requested(asked=amount(0.1, 1), allocated=amount(0.1, 1), room=amount(0.5, 9))
    at.written(at.due())
    assert (at.asked, at.due()) == (amount(1), None)
    at.pass_time(120)
    assert at.due() is None


@pytest.mark.parametrize(("reserved", "other"), [(amount(4, 1), amount(1, 4)), (amount(1, 4), amount(4, 1))])
def test_needed_refusal_is_per_resource(reserved: Resources, other: Resources) -> None:
    """For example the memory of a VM that had grown before requests followed, on a node with swap."""
    at = Requested(room=other, vm=vm("a", reserved, actual=reserved, permit=reserved))
    at.written(at.due())
    assert (at.asked, problem_of(at).partition(":")[0]) == (reserved, "the kubelet has not granted the pod's requests")
    assert at.grant(amount(4)) == reserved
    at.written(at.raising(amount(4)))
    assert (at.asked, at.grant(amount(4))) == (other, amount(4))
    at.use(amount(4))
    at.pass_time(60)
    at.written(at.due())
    assert (at.asked, at.due(), at.grant(reserved)) == (amount(4), None, reserved)
    at.use(reserved)
    at.written(at.due())
    assert (at.asked, at.allocated) == (amount(1), amount(1))


def test_foreign_container_refusal_keeps_nothing() -> None:
    at = Requested(asked=amount(4), allocated=amount(4), problem="Infeasible: sidecar")
    at.pass_time(10)
    assert at.due() == order(1, 1, "Infeasible")


def test_refused_decrease_backs_off() -> None:
    at, tried = Requested(), []
    at.written(at.raising(amount(4)))
    for second in range(200):
        at.pass_time(1)
        while (lowered := at.due()) is not None:
            tried.append((second, lowered.size))
            at.refused(lowered, "403: minimum cpu usage per Container is 2")
            if lowered.size == amount(4, 1):
                at.written(lowered)
    assert tried == [(4, amount(1)), (4, amount(4, 1)), *((at, amount(1, 1)) for at in (9, 19, 39, 79, 139, 199))]
    assert problem_of(at) == "the pod's requests were not lowered: 403: minimum cpu usage per Container is 2"


@pytest.mark.parametrize(
    ("least", "tried"),
    [
        (amount(2, 1), [amount(1), amount(2, 1)]),
        (amount(1, 2), [amount(1), amount(1, 2)]),
        (amount(2), [amount(1), amount(1, 2), amount(2, 1), amount(2)]),
        (amount(3, 1), [amount(1), amount(2, 1), amount(4, 1)]),
    ],
)
def test_refused_decrease_falls_to_original(least: Resources, tried: list[Resources]) -> None:
    """A LimitRange with a minimum for containers."""
    at, found = Requested(asked=amount(4), allocated=amount(4)), []
    at.vm = structs.replace(at.vm, first_requests=amount(2))
    at.start()
    at.pass_time(10)
    while (lowered := at.due()) is not None:
        found.append(lowered.size)
        if least.within(lowered.size):
            at.written(lowered)
        else:
            missing = least.minus_or_zero(lowered.size)
            names = [name for name, part in (("cpu", missing.cpu), ("memory", missing.mem)) if part]
            at.refused(lowered, "403: " + ", ".join(f"minimum {name} usage per Container is" for name in names))
    assert found == tried


def test_refused_decrease_allows_growth() -> None:
    at = Requested()
    at.written(at.raising(amount(1, 4)))
    for _ in range(60):
        at.pass_time(5)
        at.refused_all_due("403: minimum memory usage per Container is 2Gi")
        assert at.fleet.reserved("a") == amount(1, 4)
    at.written(at.raising(amount(4, 1)))
    assert (at.asked, at.grant(amount(4, 1))) == (amount(4), amount(4, 1))


def test_size_independent_refusal_is_shared() -> None:
    at = Requested()
    raised = at.raising(amount(4))
    assert raised is not None
    at.refused(raised, "429: too many requests", is_of_size=False)
    assert at.raising(amount(4)) is None
    at.pass_time(5)
    assert at.raising(amount(4)) == raised


def test_old_refusal_is_no_problem() -> None:
    at, said = Requested(), "the pod's requests were not raised: 403: exceeded quota: compute"
    at.refused_all(amount(4), "403: exceeded quota: compute")
    assert (at.grant(amount(4)), problem_of(at)) == (amount(1), said)
    assert (at.grant(amount(1)), problem_of(at)) == (amount(1), said)
    at.pass_time(5)
    assert problem_of(at) == ""


def test_failed_resize_retries_after_minutes() -> None:
    at = Requested()
    raised = at.raising(amount(4))
    assert raised is not None
    at.refused(raised, "422: Pod running on node without support for resize", is_final=True)
    at.pass_time(299)
    assert (at.grant(amount(4)), at.ledger.pods_to_resize()) == (amount(4), [])
    at.pass_time(1)
    assert (at.ledger.pods_to_resize(), at.grant(amount(5))) == (["uid-a"], amount(4))
    at.written(at.raising(amount(5)))
    assert at.grant(amount(5)) == amount(5)


def test_refused_increase_frees_other_resource() -> None:
    at = Requested(asked=amount(0.1, 4), allocated=amount(0.1, 4))
    at.pass_time(10)
    while (due := at.due()) is not None and due.size != amount(0.1, 1):
        at.refused(due, "403: exceeded quota: cpu")
    at.written(due)
    assert (at.due(), problem_of(at)) == (None, "the pod's requests were not raised: 403: exceeded quota: cpu")


def test_refusal_wakes_waiters() -> None:
    at = Requested()
    raised = at.raising(amount(9))
    assert raised is not None
    waits = plain_pod("waits", amount(8))
    assert at.ledger.filter(waits, ["n1"]).fits == []
    assert at.ledger.apply(ResizeRefused(raised, "403: exceeded quota"), at.now) == (RoomFreed("n1"),)


def test_unbound_pod_resizes_later() -> None:
    fleet = Fleet(node(), vm("a", amount(3)))
    ledger = fleet.ledger
    ledger.apply(RequestsFollow(True), LATER)
    pod = replace(vm_pod("a"), runner=RunnerRequests(amount(0.1), version="5"))
    ledger.apply(BindRequested(pod, "n1"), LATER)
    raised, effects = ledger.apply(ResizeDue("uid-a"), LATER)
    assert raised is not None
    fleet.did(effects)
    fleet.apply(ResizeRefused(raised, "422: it has no node", is_final=True), LATER)
    fleet.apply(PodSeen(replace(pod, node="n1", runner=RunnerRequests(amount(0.1), version="6"))))
    assert (fleet.grant("a", amount(4), number=1), ledger.pods_to_resize()) == (amount(3), ["uid-a"])
