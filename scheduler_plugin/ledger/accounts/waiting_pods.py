"""Pods on their way to a node: those that no node had room for, and those that kube-scheduler was sent on with.

Rules that hold here:

- A pod waits on the nodes that it was refused on. It is woken once, when one of them can take it; then it is asked
  about again, and waits again if it must. Nothing else wakes it.
- A process that starts finds the waiting pods by kube-scheduler's condition on them; they wait on all nodes.
- An assumed pod was sent to one node, and its bind has not come yet. Nothing is reserved: an assumption says which of
  the nodes that a pod fits is best, and never that a pod does not fit.
- kube-scheduler stops looking at ``sample_size`` suitable nodes, and its next look begins there, so a pod that it asks
  about again meets other nodes. One that was sent round in vain waits like any other, and is sent round again once room
  has become free for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import VmAccount, claim_size
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.placement.verdict import FITS, Room, verdict

ASSUMED_KEPT: Final = 16
"""More than kube-scheduler has under way between the end of a pod's cycle and its bind."""


class AssumedPods:
    """Nodes and claims of assumed pods, by UID, the oldest first."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, Resources]] = {}

    def assume(self, uid: str, node: str, claim: Resources) -> None:
        """The pod was sent to ``node`` and will claim ``claim`` there."""
        # Out and in again, so that it counts as the newest.
        self._pods.pop(uid, None)
        self._pods[uid] = (node, claim)
        # A bind may never come; without a clock, only newer assumptions end one.
        if len(self._pods) > ASSUMED_KEPT:
            del self._pods[next(iter(self._pods))]

    def settle(self, uid: str) -> None:
        """The pod's bind has come, or it is asked about again, or it is gone."""
        self._pods.pop(uid, None)

    def taken(self, beside: str) -> dict[str, Resources]:
        """Claims of all of them but the pod ``beside``, by node."""
        claims: dict[str, Resources] = {}
        for uid, (node, claim) in self._pods.items():
            if uid != beside:
                claims[node] = claims[node] + claim if node in claims else claim
        return claims


SAMPLED_KEPT: Final = 1_000
"""Pods remembered. The oldest are forgotten; the worst of that is that they are sent round once more."""

PERCENT: Final = 20
"""The ``percentageOfNodesToScore`` in our manifests."""

_LEAST: Final = 100
_TOLERANCE: Final = 0.9
"""kube-scheduler may know a few nodes more or less than we do."""


def sample_size(nodes: int, percent: int) -> int:
    """The number of suitable nodes that kube-scheduler is content with: ``percent`` (1-100, its
    ``percentageOfNodesToScore``) of all nodes, or its own default, whichever is less.

    >>> [sample_size(nodes, 20) for nodes in (80, 200, 2_000, 10_000)]
    [80, 100, 400, 500]
    >>> sample_size(2_000, 100)
    680
    """
    # The same arithmetic as kube-scheduler's numFeasibleNodesToFind.
    if nodes < _LEAST:
        return nodes
    return max(_LEAST, nodes * min(percent, max(5, 50 - nodes // 125)) // 100)


class SampledPods:
    """Retries left for each pod, by UID.

    ``percent`` is the ``percentageOfNodesToScore`` of kube-scheduler.
    """

    def __init__(self) -> None:
        self.percent = PERCENT
        self._left: dict[str, int] = {}

    def is_sample(self, asked: int, nodes: int) -> bool:
        """Return True if there may be suitable nodes beside those that were asked about."""
        return sample_size(nodes, self.percent) * _TOLERANCE <= asked < nodes

    def send_round(self, uid: str, asked: int, nodes: int) -> bool:
        """Note that the pod was refused on ``asked`` of all nodes. Returns True if it is to be sent round."""
        # Enough retries for every node to have its turn twice.
        left = self._left.pop(uid, 2 * -(-nodes // asked))
        self._left[uid] = max(-1, left - 1)
        if len(self._left) > SAMPLED_KEPT:
            self.forget(next(iter(self._left)))
        return left > 0

    def is_sent_round(self, uid: str) -> bool:
        """Return True if the pod will be asked about again, on other nodes."""
        return self._left.get(uid, -1) >= 0

    def forget(self, uid: str) -> None:
        """The pod has found a node, is gone, or has room by now."""
        self._left.pop(uid, None)


MOST_UNSEEN: Final = 1_000
"""How many waiting pods that no watch has shown are kept."""

ASKED_WITHIN: Final = Seconds(30.0)
"""A pod that was woken is asked about within this time: kube-scheduler lets it wait 10 s at most."""

MOST_CALLS: Final = 4
"""After this many calls in vain a pod only waits for room again."""


@dataclass(slots=True, eq=False)
class WaitingPod:
    """A pod that needs ``claim``, as does its VM's ``account``; ``nodes`` are those that refused it.

    ``calls`` counts how often it was woken without being asked about, ``called_at`` is when that was noticed last.
    """

    facts: PodFacts
    account: VmAccount | None
    claim: Resources
    nodes: frozenset[str]
    calls: int = 0
    called_at: Instant | None = None

    def goal(self, rooms: Mapping[str, Room]) -> str | None:
        """A node that the pod fits now, another one after each call in vain; None if it fits on none."""
        fitting = (name for name in self.nodes if verdict(rooms.get(name), self.claim) is FITS)
        return next(iter(list(islice(fitting, self.calls + 1))[-1:]), None)


@dataclass(slots=True, eq=False)
class _Group:
    """The pods that wait on the same nodes; none of them needs less than ``least``."""

    least: Resources
    pods: dict[str, WaitingPod] = field(default_factory=dict)


class WaitingPods:
    """All waiting pods by UID, by the nodes that they wait on, and by their VM."""

    def __init__(self) -> None:
        self._pods: dict[str, WaitingPod] = {}
        # Pods that were asked about together share one set of nodes: there are few sets, of thousands of names each.
        self._groups: dict[frozenset[str], _Group] = {}
        self._of_vm: dict[VmAccount, dict[str, WaitingPod]] = {}
        self._seen: set[str] = set()
        self._unseen: dict[str, None] = {}
        self._unlisted: dict[str, WaitingPod] = {}
        self._called: dict[str, WaitingPod] = {}
        self._unheard: list[WaitingPod] = []

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: PodFacts, account: VmAccount | None, nodes: Iterable[str]) -> None:
        """The pod was refused on all of ``nodes``."""
        uid = pod.uid
        self._drop(uid)
        self._enter(WaitingPod(pod, account, claim_size(pod, account), frozenset(nodes)))
        if uid not in self._seen:
            self._unseen[uid] = None
            # No watch would report that such a pod is gone.
            if len(self._unseen) > MOST_UNSEEN:
                self._drop(next(iter(self._unseen)))

    def forget(self, uid: str) -> None:
        """The pod has found its place, or is gone."""
        self._seen.discard(uid)
        self._unlisted.pop(uid, None)
        self._drop(uid)

    def woken(self, uid: str) -> None:
        """The pod was called: it should be asked about soon. One that no watch shows may be gone."""
        pod = self._pods.get(uid)
        self._drop(uid)
        if pod is not None and uid in self._seen:
            pod.calls, pod.called_at = pod.calls + 1, None
            self._called[uid] = pod

    def fits(self, uid: str) -> None:
        """The pod was asked about and fits somewhere."""
        self._drop(uid)

    def lapse(self, now: Instant) -> None:
        """Time has passed: those that were called in vain wait again, and are called again."""
        for uid, pod in list(self._called.items()):
            # Calls carry no time: the first look after one starts its clock.
            if pod.called_at is None:
                pod.called_at = now
            elif now - pod.called_at >= ASKED_WITHIN:
                # It was not asked about, so the call was lost, or kube-scheduler refuses it for reasons of its own.
                # It is called a few times more, each time for another node if there is one.
                del self._called[uid]
                pod.claim = claim_size(pod.facts, pod.account)
                self._enter(pod)
                self._unheard += [pod] if pod.calls < MOST_CALLS else []

    def call(
        self, rooms: Mapping[str, Room], touched: Iterable[str], resized: Iterable[VmAccount]
    ) -> Mapping[str, str]:
        """Calls those that fit a touched node now, or fit because they need another amount; the node for each UID."""
        calls: dict[str, str] = {}
        if not self._pods:
            return calls
        changed = [pod for account in resized for pod in self._resized(account)]
        unheard, self._unheard = self._unheard, []
        for pod in dict.fromkeys((*changed, *unheard)):
            node = pod.goal(rooms)
            if node is not None:
                calls[pod.facts.uid] = node
                self.woken(pod.facts.uid)
        for room in filter(None, map(rooms.get, touched)):
            for pod in self._fitting(room):
                calls[pod.facts.uid] = room.node
                self.woken(pod.facts.uid)
        return calls

    def seen(self, uid: str) -> None:
        """A watch shows the pod, and that it is not bound."""
        self._seen.add(uid)
        self._unseen.pop(uid, None)
        if uid in self._unlisted:
            self._enter(self._unlisted.pop(uid))

    def listed(self, uids: Set[str]) -> None:
        """A complete list names ``uids``; what it does not name waits again only if it is seen later."""
        self._seen &= uids
        # A pod may be younger than the list; it waits again once a watch shows it.
        self._unlisted = {uid: pod for uid, pod in self._pods.items() if uid not in uids}
        for uid in self._unlisted.keys() | (self._called.keys() - uids):
            self._drop(uid)

    def _resized(self, account: VmAccount) -> list[WaitingPod]:
        """The waiting pods of a VM that may need another amount now."""
        pods = list(self._of_vm.get(account, {}).values())
        for pod in pods:
            pod.claim = claim_size(pod.facts, account)
            group = self._groups[pod.nodes]
            # Only downwards: too small a bound costs a look at the pods, too large a one would miss them.
            group.least = group.least.at_most(pod.claim)
        return pods

    def _fitting(self, room: Room) -> list[WaitingPod]:
        fitting = []
        for nodes, group in self._groups.items():
            # Most groups fail here, before any of their pods is looked at.
            if room.node in nodes and group.least.within(room.free):
                fitting += [pod for pod in group.pods.values() if verdict(room, pod.claim) is FITS]
        return fitting

    def _enter(self, pod: WaitingPod) -> None:
        group = self._groups.get(pod.nodes)
        if group is None:
            group = self._groups[pod.nodes] = _Group(pod.claim)
        else:
            group.least = group.least.at_most(pod.claim)
        uid = pod.facts.uid
        group.pods[uid] = self._pods[uid] = pod
        if pod.account is not None:
            self._of_vm.setdefault(pod.account, {})[uid] = pod

    def _drop(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        self._unseen.pop(uid, None)
        self._called.pop(uid, None)
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
