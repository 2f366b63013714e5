"""Deferred amounts of pods count once, and cause pressure only if the pods ask for it (B.14)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.events import PodGone, PodSeen
from tests.scheduler_plugin.ledger.fleet import Fleet, amount, node, plain_pod, vm, vm_pod

STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["n1", "n2", "gone"]), st.integers(0, 4), st.booleans()),
    max_size=12,
)


@given(STEPS)
def test_node_sums_match_pods(steps: list[tuple[str, str, int, bool]]) -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("v", amount(2)), vm_pod("v", "n1"))
    for of, on, waits, asks in steps:
        if on == "gone":
            fleet.apply(PodGone(f"uid-{of}"))
        else:
            pod = plain_pod(of, amount(1 + waits), on)
            fleet.apply(PodSeen(replace(pod, deferred=amount(waits), make_room=asks)))
    for book in fleet.ledger.nodes.values():
        pods = [claim.pod for claim in book.claims.values()]
        assert book.deferred.all == Resources.sum(pod.deferred for pod in pods)
        assert book.deferred.opted_in == Resources.sum(pod.deferred for pod in pods if pod.make_room)


@pytest.mark.parametrize(
    ("waits", "asks", "requests", "excess"),
    [
        (6, True, 4, amount(5)),
        (10, True, 4, ZERO),
        (6, True, 0, ZERO),
        (6, False, 4, ZERO),
        (3, True, 4, ZERO),
        (0, True, 4, ZERO),
    ],
    ids=[
        "all of it counts where it does not fit",
        "nothing where the node is too small for it",
        "nothing where the kubelet does not count them",
        "nothing where the pod does not ask",
        "nothing where there is room",
        "nothing without a wish",
    ],
)
def test_need_presses_as_far_as_moves_help(waits: int, asks: bool, requests: int, excess: Resources) -> None:
    """The node has room for 10 and a watermark of 7: a VM of 4, and a pod of 2."""
    pod = replace(plain_pod("p", amount(2 + waits), "n1"), deferred=amount(waits), make_room=asks)
    runs = replace(vm_pod("v", "n1"), requests=amount(requests))
    fleet = Fleet(node(total=11), vm("v", amount(4)), runs, pod)
    book = fleet.ledger.nodes["n1"]
    assert (book.pressure.excess, book.excess_if_granted) == (excess, excess)


def test_impossible_need_hides_no_possible_one() -> None:
    fleet = Fleet(node(total=11), vm("v", amount(4)), replace(vm_pod("v", "n1"), requests=amount(4)))
    for of, waits in (("large", 9), ("small", 5)):
        pod = plain_pod(of, amount(1 + waits), "n1")
        fleet.apply(PodSeen(replace(pod, deferred=amount(waits), make_room=True)))
    assert fleet.ledger.nodes["n1"].excess_if_granted == amount(4 + 2 + 5 - 7)
