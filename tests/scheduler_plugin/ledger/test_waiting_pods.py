"""A waiting pod is woken only when a node that refused it can accept it."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace

import pytest

from protocol.units import ZERO, Instant
from scheduler_plugin.ledger.accounts import waiting_pods
from scheduler_plugin.ledger.accounts.waiting_pods import WaitingPods
from scheduler_plugin.ledger.events import (
    BindRequested,
    Listed,
    MigrationSeen,
    NodeSeen,
    PodGone,
    PodSeen,
    TimePassed,
    VmSeen,
)
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.outcomes import RoomFreed
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, migration, node, plain_pod, vm, vm_pod


def busy(*names: str) -> Fleet:
    """Nodes of nine CPUs and GiB, each with a pod ``on-NODE`` that takes eight."""
    return Fleet(*(node(each) for each in names), *(plain_pod(f"on-{each}", amount(8), each) for each in names))


def refused(fleet: Fleet, of: str, needs: float, *names: str) -> None:
    assert fleet.ledger.filter(plain_pod(of, amount(needs)), list(names)).fits == []


def test_unusable_room_wakes_nothing() -> None:
    fleet = busy("n1", "gpu")
    refused(fleet, "picky", 3, "gpu")
    assert fleet.apply(PodGone("uid-on-n1")) == ()
    assert fleet.apply(PodGone("uid-on-gpu")) == (RoomFreed("gpu"),)


def test_pod_is_woken_once_per_refusal() -> None:
    fleet = busy("n1")
    refused(fleet, "w", 3, "n1")
    assert fleet.apply(PodSeen(plain_pod("on-n1", amount(5), "n1"))) == (RoomFreed("n1"),)
    assert fleet.ledger.waiting == 0
    assert fleet.apply(PodSeen(plain_pod("on-n1", amount(4), "n1"))) == ()
    fleet.apply(PodSeen(plain_pod("on-n1", amount(8), "n1")))
    refused(fleet, "w", 3, "n1")
    assert fleet.apply(PodGone("uid-on-n1")) == (RoomFreed("n1"),)


def test_one_touch_wakes_all_waiters() -> None:
    fleet = busy("n1", "n2")
    refused(fleet, "v", 3, "n1", "n2")
    refused(fleet, "w", 4, "n1", "n2")
    refused(fleet, "x", 9.5, "n1")
    assert fleet.apply(PodGone("uid-on-n1")) == (RoomFreed("n1"),)
    assert fleet.ledger.waiting == 1


def test_fitting_pod_stops_waiting() -> None:
    fleet = busy("n1", "n2")
    refused(fleet, "w", 3, "n1")
    fleet.apply(PodGone("uid-on-n2"))
    assert fleet.ledger.filter(plain_pod("w", amount(3)), ["n1", "n2"]).fits == ["n2"]
    assert fleet.ledger.waiting == 0


def test_smaller_need_wakes_pod() -> None:
    fleet = Fleet(node("n1", 4), node("n2", 6))
    fleet.apply(VmSeen(vm("a", amount(8))), LATER)
    assert fleet.ledger.filter(vm_pod("a"), ["n1", "n2"]).fits == []
    assert fleet.apply(VmSeen(vm("a", amount(6), version=2)), LATER) == ()
    assert fleet.apply(VmSeen(vm("a", amount(4), version=3)), LATER) == (RoomFreed("n2"),)


def test_larger_need_is_not_woken() -> None:
    fleet = busy("n1")
    fleet.apply(VmSeen(vm("a", amount(2))), LATER)
    assert fleet.ledger.filter(vm_pod("a"), ["n1"]).fits == []
    fleet.apply(VmSeen(vm("a", amount(7), version=2)), LATER)
    assert fleet.apply(PodSeen(plain_pod("on-n1", amount(4), "n1"))) == ()


def test_target_waits_only_for_room() -> None:
    fleet = busy("n1", "n2")
    fleet.apply(VmSeen(vm("a", amount(2))), LATER)
    fleet.apply(MigrationSeen(migration("a", to="n2")), LATER)
    target = replace(vm_pod("a", uid="t"), migration=migration("a").name)
    assert fleet.ledger.filter(target, ["n1", "n2"]).fits == []
    assert fleet.apply(PodGone("uid-on-n1")) == ()


def test_unlisted_pods_stop_waiting() -> None:
    fleet = busy("n1")
    for number in range(3):
        refused(fleet, f"w{number}", 3, "n1")
    listed = [plain_pod("on-n1", amount(8), "n1"), plain_pod("w1", amount(3))]
    fleet.apply(Listed([node("n1")], listed, []), LATER)
    assert fleet.ledger.waiting == 1


def test_younger_pod_keeps_waiting() -> None:
    fleet = busy("n1")
    refused(fleet, "w", 3, "n1")
    fleet.apply(Listed([node("n1")], [plain_pod("on-n1", amount(8), "n1")], []), LATER)
    fleet.apply(PodSeen(plain_pod("w", amount(3))))
    assert fleet.ledger.waiting == 1
    assert fleet.apply(PodGone("uid-on-n1")) == (RoomFreed("n1"),)


def test_unseen_waiting_pods_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_pods, "MAX_UNSEEN", 2)
    fleet = busy("n1")
    fleet.apply(PodSeen(plain_pod("seen", amount(3))))
    for of in ("seen", "w1", "w2", "w3"):
        refused(fleet, of, 3, "n1")
    assert fleet.ledger.waiting == 3
    fleet.apply(PodGone("uid-w1"))
    assert fleet.ledger.waiting == 3


def test_two_pods_of_one_vm_wait_by_themselves() -> None:
    fleet = busy("n1")
    fleet.apply(VmSeen(vm("a", amount(2))), LATER)
    for uid in ("one", "two"):
        assert fleet.ledger.filter(vm_pod("a", uid=uid), ["n1"]).fits == []
    fleet.apply(PodGone("one"))
    assert fleet.ledger.waiting == 1
    assert fleet.apply(VmSeen(vm("a", amount(1), version=2)), LATER) == (RoomFreed("n1"),)


def test_nothing_waits_at_first() -> None:
    assert len(WaitingPods()) == 0
    assert Fleet(node()).ledger.rooms["n1"].reserved == ZERO


def test_smaller_target_wakes_waiters() -> None:
    """The source pod had a sidecar that the target lacks: the bind frees that part of the reservation."""
    source = replace(vm_pod("a", "n1"), requests=amount(1.1), overhead=amount(1))
    fleet = Fleet(node(), node("n2"), vm("a", amount(2), pod=source.name), source)
    fleet.apply(MigrationSeen(migration("a", to="n2")), LATER)
    assert fleet.on("n2") == amount(3)
    refused(fleet, "w", 7, "n2")
    target = replace(vm_pod("a", uid="t"), migration=migration("a").name)
    assert fleet.ledger.apply(BindRequested(target, "n2"), LATER).effects == (RoomFreed("n2"),)


def waits(of: str, needs: float) -> PodFacts:
    """A pod for which kube-scheduler has found no node."""
    return replace(plain_pod(of, amount(needs)), unschedulable="0/1 nodes are available")


def test_who_waits_is_found_in_the_first_list() -> None:
    fits, fits_not = waits("fits", 3), waits("no", 9.5)
    ledger = Ledger()
    assert ledger.apply(Listed([node("n1")], [fits, fits_not], []), LATER) == (RoomFreed("n1"),)
    assert ledger.waiting == 1
    assert ledger.apply(NodeSeen(node("n1", 20)), LATER) == (RoomFreed("n1"),)


def test_pod_of_unknown_vm_is_woken() -> None:
    """kube-scheduler retries on its own until the VM is known."""
    pod = replace(vm_pod("a"), unschedulable="0/1 nodes are available")
    assert Ledger().apply(Listed([node("n1")], [pod], []), LATER) == (RoomFreed("n1"),)
    assert Ledger().apply(Listed([], [pod], []), LATER) == ()


def test_failed_wake_up_tries_another_node() -> None:
    fleet = Fleet(node("n1"), node("n2"), plain_pod("on-n1", amount(8), "n1"), plain_pod("on-n2", amount(8), "n2"))
    fleet.apply(PodSeen(plain_pod("w", amount(3))))
    refused(fleet, "w", 3, "n1", "n2")
    (first,) = fleet.apply(PodGone("uid-on-n1"))
    fleet.apply(PodGone("uid-on-n2"))
    assert first == RoomFreed("n1")
    assert fleet.apply(TimePassed(), LATER) == ()
    (second,) = fleet.apply(TimePassed(), Instant(LATER + 30))
    assert second in {RoomFreed("n1"), RoomFreed("n2")}
    assert fleet.apply(TimePassed(), Instant(LATER + 40)) == ()
    (third,) = fleet.apply(TimePassed(), Instant(LATER + 80))
    assert third == second  # there are two: the third call goes to the last of them, too
    fleet.apply(TimePassed(), Instant(LATER + 90))
    fleet.apply(PodSeen(plain_pod("other", amount(8), "n1")))
    fleet.apply(PodSeen(plain_pod("more", amount(8), "n2")))
    assert fleet.apply(TimePassed(), Instant(LATER + 130)) == ()
    assert fleet.ledger.waiting == 1


def test_unlisted_called_pod_is_forgotten() -> None:
    fleet = busy("n1")
    fleet.apply(PodSeen(plain_pod("w", amount(3))))
    refused(fleet, "w", 3, "n1")
    assert fleet.apply(PodGone("uid-on-n1")) == (RoomFreed("n1"),)
    fleet.apply(Listed([node("n1")], [], []), LATER)
    assert fleet.apply(TimePassed(), Instant(LATER + 60)) == ()
    assert fleet.ledger.waiting == 0


def test_failed_wake_up_repeats_after_change() -> None:
    """Each time the wake-up has expired, a change of its VM wakes the pod again."""
    fleet = Fleet(node(), vm("a", amount(2)))
    pod, rooms, waiting = vm_pod("a"), dict(fleet.ledger.rooms), WaitingPods()
    account = fleet.ledger.vms[pod.vm or pod.name]
    waiting.observed(pod.uid)
    waiting.add(pod, account, ["n1"])
    assert waiting.wake(rooms, ["n1"], ()) == {pod.uid: "n1"}
    for step in range(1, waiting_pods.MAX_WAKE_UPS):
        for after in (0, waiting_pods.WAKE_UP_TIMEOUT):
            waiting.expire(Instant(LATER + 100 * step + after))
        assert waiting.wake(rooms, (), [account]) == {pod.uid: "n1"}


def test_waiting_pods_share_their_nodes() -> None:
    """Two thousand pods that waited for the same five thousand nodes took a gigabyte."""
    names = [f"node-{number}" for number in range(200)]
    waiting = WaitingPods()
    tracemalloc.start()
    try:
        for number in range(100):
            waiting.add(plain_pod(f"p-{number}", amount(3)), None, names)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(waiting), taken < 100 * sys.getsizeof(frozenset(names)) / 2) == (100, True)
