"""Preemption helps if the pod fits without its victims according to the ledger, not to requests."""

from __future__ import annotations

from dataclasses import replace

from protocol.units import ZERO
from scheduler_plugin.ledger.binding import PreemptionCandidate, nodes_after_preemption
from scheduler_plugin.ledger.events import PodSeen
from tests.scheduler_plugin.ledger.fleet import Fleet, amount, node, plain_pod, vm, vm_pod


def busy() -> Fleet:
    """Nine CPUs and GiB on each node: a VM of six and a pod of two on n1, a pod of nine on n2."""
    pods = (vm_pod("a", "n1"), plain_pod("b", amount(2), "n1"), plain_pod("c", amount(9), "n2"))
    return Fleet(node("n1"), node("n2"), vm("a", amount(6)), *pods)


def found(fleet: Fleet, needs: float, **victims: set[str]) -> list[str]:
    candidates = [PreemptionCandidate(on, uids) for on, uids in victims.items()]
    return nodes_after_preemption(fleet.ledger.rooms, fleet.ledger.claims, amount(needs), candidates)


def test_a_victim_frees_what_it_reserves() -> None:
    assert found(busy(), 7, n1={"uid-a"}, n2={"uid-c"}) == ["n1", "n2"]
    assert found(busy(), 4, n1={"uid-b"}, n2={"uid-c"}) == ["n2"]


def test_unknown_victim_frees_nothing() -> None:
    assert found(busy(), 4, n1={"uid-c", "uid-x"}, n9={"uid-a"}) == []


def test_unbounded_pod_frees_nothing() -> None:
    fleet = busy()
    fleet.apply(PodSeen(replace(plain_pod("d", ZERO, "n1"), unreadable="spec: garbage", is_bounded=False)))
    assert found(fleet, 4, n1={"uid-a"}) == []
