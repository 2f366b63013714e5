"""Pods without a node: those that wait for room, and those whose bind has not arrived yet.

Rules:

- A pod waits for the nodes that refused it. The ledger wakes it once, when one of them has room; then kube-scheduler
  filters again, and the pod waits again if refused.
- A new process finds waiting pods by kube-scheduler's ``PodScheduled`` condition; they wait for all nodes.
- An assumed pod was sent to one node, and its bind has not arrived yet. Nothing is reserved: an assumption only ranks
  the nodes that fit other pods.
- kube-scheduler stops after ``sample_size`` feasible nodes and starts its next cycle there, so a retried pod meets
  other nodes. A pod is retried until every node could have been sampled twice; then it waits like any other, and may be
  retried again once room was freed for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import VmAccount, claim_size
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.placement.scoring import PodDemand
from scheduler_plugin.placement.verdict import FITS, Room, verdict

MAX_ASSUMED: Final = 16
"""More than the binds that kube-scheduler has in flight."""


class AssumedPods:
    """Nodes and sizes of assumed pods, by UID, oldest first."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, PodDemand]] = {}

    def assume(self, uid: str, node: str, size: PodDemand) -> None:
        """Record that the pod was sent to ``node`` and will have ``size`` there."""
        # Reinsert it as the newest.
        self._pods.pop(uid, None)
        self._pods[uid] = (node, size)
        # A bind may never come. There is no clock here, so newer assumptions push out old ones.
        if len(self._pods) > MAX_ASSUMED:
            del self._pods[next(iter(self._pods))]

    def settle(self, uid: str) -> None:
        """Remove a pod: its bind has arrived, kube-scheduler filters again, or it is gone."""
        self._pods.pop(uid, None)

    def claimed(self, excluding: str) -> dict[str, PodDemand]:
        """Sizes of all assumed pods except ``excluding``, by node."""
        sizes: dict[str, PodDemand] = {}
        for uid, (node, size) in self._pods.items():
            if uid != excluding:
                sizes[node] = sizes[node].plus(size) if node in sizes else size
        return sizes


MAX_SAMPLED: Final = 10_000
"""Maximum number of pods tracked. Others are not retried: with the oldest dropped instead, none would ever end."""

PERCENT: Final = 20
"""``percentageOfNodesToScore`` in our manifests."""

_LEAST: Final = 100
_TOLERANCE: Final = 0.9
"""kube-scheduler's number of nodes may differ slightly from ours."""


def sample_size(nodes: int, percent: int) -> int:
    """Number of feasible nodes after which kube-scheduler stops: ``percent`` (1-100, its ``percentageOfNodesToScore``)
    of all nodes, or its own default, whichever is less.

    >>> [sample_size(nodes, 20) for nodes in (80, 200, 2_000, 10_000)]
    [80, 100, 400, 500]
    >>> sample_size(2_000, 100)
    680
    """
    # Same as kube-scheduler's numFeasibleNodesToFind.
    if nodes < _LEAST:
        return nodes
    return max(_LEAST, nodes * min(percent, max(5, 50 - nodes // 125)) // 100)


class SampledPods:
    """Retries left for each pod, by UID.

    ``percent`` is the ``percentageOfNodesToScore`` of kube-scheduler.
    """

    def __init__(self) -> None:
        self.percent = PERCENT
        self._retries_left: dict[str, int] = {}

    def is_sample(self, offered: int, nodes: int) -> bool:
        """Return True if there may be feasible nodes other than the ``offered`` ones."""
        return sample_size(nodes, self.percent) * _TOLERANCE <= offered < nodes

    def should_retry(self, uid: str, offered: int, nodes: int) -> bool:
        """Record that ``offered`` nodes refused the pod. Return True if kube-scheduler should retry it."""
        if uid not in self._retries_left and len(self._retries_left) >= MAX_SAMPLED:
            return False
        # Enough retries to sample every node twice.
        left = self._retries_left.get(uid, 2 * -(-nodes // offered))
        self._retries_left[uid] = max(-1, left - 1)
        return left > 0

    def is_retried(self, uid: str) -> bool:
        """Return True if kube-scheduler will retry the pod on other nodes."""
        return self._retries_left.get(uid, -1) >= 0

    def forget(self, uid: str) -> None:
        """Remove a pod that found a node or is gone."""
        self._retries_left.pop(uid, None)

    def listed(self, uids: Set[str]) -> None:
        """Remove pods that are missing in a complete list: no watch may ever have shown them."""
        self._retries_left = {uid: left for uid, left in self._retries_left.items() if uid in uids}


MAX_UNSEEN: Final = 1_000
"""Maximum number of waiting pods that no watch has shown."""

WAKE_UP_TIMEOUT: Final = Seconds(30.0)
"""kube-scheduler filters a woken pod within this time: its backoff is at most 10 s."""

MAX_WAKE_UPS: Final = 4
"""After this many wake-ups without effect a pod only waits for room again."""


@dataclass(slots=True, eq=False)
class WaitingPod:
    """A waiting pod of size ``claim``; ``nodes`` have refused it.

    ``wake_ups`` counts wake-ups that kube-scheduler did not follow; ``woken_at`` is when the last one was noticed.
    """

    facts: PodFacts
    account: VmAccount | None
    claim: Resources
    nodes: frozenset[str]
    wake_ups: int = 0
    woken_at: Instant | None = None

    def fitting_node(self, rooms: Mapping[str, Room]) -> str | None:
        """A node that the pod fits now, another one after each failed wake-up; None if none fits."""
        fitting = (name for name in self.nodes if verdict(rooms.get(name), self.claim) is FITS)
        return next(iter(list(islice(fitting, self.wake_ups + 1))[-1:]), None)


@dataclass(slots=True, eq=False)
class _PodsOfNodes:
    """Pods that wait for the same ``nodes``; each needs at least ``min_claim``."""

    nodes: frozenset[str]
    min_claim: Resources
    pods: dict[str, WaitingPod] = field(default_factory=dict)


class WaitingPods:
    """All waiting pods by UID, by node set, and by VM."""

    def __init__(self) -> None:
        self._pods: dict[str, WaitingPod] = {}
        # Pods filtered together share one set of nodes: few sets, of thousands of names each.
        self._groups: dict[frozenset[str], _PodsOfNodes] = {}
        self._of_vm: dict[VmAccount, dict[str, WaitingPod]] = {}
        self._observed: set[str] = set()
        self._unseen: dict[str, None] = {}
        self._unlisted: dict[str, WaitingPod] = {}
        self._woken: dict[str, WaitingPod] = {}
        self._to_retry: list[WaitingPod] = []

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: PodFacts, account: VmAccount | None, nodes: Iterable[str]) -> None:
        """Add a pod that all of ``nodes`` have refused."""
        uid = pod.uid
        self.drop(uid)
        self._enter(WaitingPod(pod, account, claim_size(pod, account), frozenset(nodes)))
        if uid not in self._observed:
            self._unseen[uid] = None
            # No watch would report its deletion.
            if len(self._unseen) > MAX_UNSEEN:
                self.drop(next(iter(self._unseen)))

    def forget(self, uid: str) -> None:
        """Remove a pod that has a node or is gone."""
        self._observed.discard(uid)
        self._unlisted.pop(uid, None)
        self.drop(uid)

    def woken(self, uid: str) -> None:
        """Record that the pod was woken. A pod that no watch has shown is dropped: it may be gone."""
        pod = self._pods.get(uid)
        self.drop(uid)
        if pod is not None and uid in self._observed:
            pod.wake_ups, pod.woken_at = pod.wake_ups + 1, None
            self._woken[uid] = pod

    def expire(self, now: Instant) -> None:
        """Let pods wait again, and wake them again, if their wake-up had no effect."""
        for uid, pod in list(self._woken.items()):
            # Wake-ups carry no time: the first ``expire`` after one starts its clock.
            if pod.woken_at is None:
                pod.woken_at = now
            elif now - pod.woken_at >= WAKE_UP_TIMEOUT:
                # The wake-up was lost, or kube-scheduler rejects the pod for other reasons. Try a few more times, on
                # another node each time if there is one.
                del self._woken[uid]
                pod.claim = claim_size(pod.facts, pod.account)
                self._enter(pod)
                self._to_retry += [pod] if pod.wake_ups < MAX_WAKE_UPS else []

    def wake(
        self, rooms: Mapping[str, Room], touched: Iterable[str], resized: Iterable[VmAccount]
    ) -> Mapping[str, str]:
        """Wake the pods that fit a touched node, or whose size has changed; return the node for each UID."""
        calls: dict[str, str] = {}
        if not self._pods:
            return calls
        changed = [pod for account in resized for pod in self._resized(account)]
        to_retry, self._to_retry = self._to_retry, []
        for pod in dict.fromkeys((*changed, *to_retry)):
            node = pod.fitting_node(rooms)
            if node is not None:
                calls[pod.facts.uid] = node
                self.woken(pod.facts.uid)
        for room in filter(None, map(rooms.get, touched)):
            for pod in self._fitting(room):
                calls[pod.facts.uid] = room.node
                self.woken(pod.facts.uid)
        return calls

    def observed(self, uid: str) -> None:
        """Record that a watch has shown the pod without a node."""
        self._observed.add(uid)
        self._unseen.pop(uid, None)
        if uid in self._unlisted:
            self._enter(self._unlisted.pop(uid))

    def listed(self, uids: Set[str]) -> None:
        """Drop pods that are missing in a complete list of ``uids``; they wait again once a watch shows them."""
        self._observed &= uids
        # A pod may be younger than the list; it waits again once a watch shows it.
        self._unlisted = {uid: pod for uid, pod in self._pods.items() if uid not in uids}
        for uid in self._unlisted.keys() | (self._woken.keys() - uids):
            self.drop(uid)

    def _resized(self, account: VmAccount) -> list[WaitingPod]:
        """The waiting pods of a VM, with their new sizes."""
        pods = list(self._of_vm.get(account, {}).values())
        for pod in pods:
            pod.claim = claim_size(pod.facts, account)
            group = self._groups[pod.nodes]
            # Only lower it: a low bound costs a scan of the pods, a high one would miss them.
            group.min_claim = group.min_claim.at_most(pod.claim)
        return pods

    def _fitting(self, room: Room) -> list[WaitingPod]:
        fitting = []
        for nodes, group in self._groups.items():
            # Fast path: rejects most groups without a scan of their pods.
            if room.node in nodes and group.min_claim.within(room.free):
                fitting += [pod for pod in group.pods.values() if verdict(room, pod.claim) is FITS]
        return fitting

    def _enter(self, pod: WaitingPod) -> None:
        group = self._groups.get(pod.nodes)
        if group is None:
            group = self._groups[pod.nodes] = _PodsOfNodes(pod.nodes, pod.claim)
        else:
            group.min_claim = group.min_claim.at_most(pod.claim)
        # An equal set of its own would take half a megabyte in a large cluster, for each pod.
        pod.nodes = group.nodes
        uid = pod.facts.uid
        group.pods[uid] = self._pods[uid] = pod
        if pod.account is not None:
            self._of_vm.setdefault(pod.account, {})[uid] = pod

    def drop(self, uid: str) -> None:
        """Remove a pod, if present, but remember that a watch has shown it."""
        pod = self._pods.pop(uid, None)
        self._unseen.pop(uid, None)
        self._woken.pop(uid, None)
        if pod is None:
            return
        group = self._groups[pod.nodes]
        del group.pods[uid]
        if not group.pods:
            del self._groups[pod.nodes]
        if pod.account is not None:
            del self._of_vm[pod.account][uid]
            if not self._of_vm[pod.account]:
                del self._of_vm[pod.account]
