"""The verbs of kube-scheduler: filter, prioritize, bind (S4.10)."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from zlib import crc32

from protocol.ranking.config import RankingConfig
from protocol.units import Resources
from scheduler_plugin.ledger import binding
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.outcomes import Reservation, RoomFreed
from scheduler_plugin.ledger.parts.part import Effects, LedgerPart
from scheduler_plugin.placement import Filtered


class Scheduling(LedgerPart):
    """Judges nodes, reserves for binds, and hears how each bind ended."""

    def filter(self, pod: PodFacts, names: list[str]) -> Filtered:
        """The nodes that fit the pod. One that fits nowhere waits. Raises ``NotReadyError``."""
        self._require_ready()
        return binding.filter_pod(self._state, pod, names)

    def look_further(self, pod: PodFacts, asked: list[str]) -> Effects:
        """The pod was refused on all ``asked`` nodes. If they are a sample and others have room, make kube-scheduler
        look again.
        """
        state = self._state
        if pod.uid in state.claims or state.is_gone(pod.uid):
            return ()
        # kube-scheduler has seen all nodes, so another look would end the same.
        if not state.sampled.is_sample(len(asked), len(state.rooms)):
            return ()
        fitting = state.node_indexes.of(binding.claim_of(state, pod)).fitting()
        elsewhere = next(iter(fitting.difference(asked)), None)
        if elsewhere is None or not state.sampled.send_round(pod.uid, len(asked), len(state.rooms)):
            return ()
        return (RoomFreed(elsewhere),)

    def is_sent_round(self, uid: str) -> bool:
        """Return True if kube-scheduler will ask about the pod on other nodes, so that no pod has to make room now."""
        return self._state.sampled.is_sent_round(uid)

    def best(self, pod: PodFacts, asked: Container[str], most: int) -> list[str]:
        """The ``most`` best of the asked nodes that the pod fits; one alone is remembered for the pods after it.

        Empty if that is for ``filter`` to say: the pod fits nowhere, holds a reservation, or is a migration's.
        Raises ``NotReadyError``.
        """
        self._require_ready()
        state = self._state
        # ``filter`` answers these: a pod with a reservation fits its node only, and a target only where its migration
        # goes.
        if pod.uid in state.claims or pod.migration is not None:
            return []
        claim = binding.claim_of(state, pod)
        # Each pod begins at another of the equal nodes, so that pods that come together spread.
        taken, start = state.assumed.taken(pod.uid), crc32(pod.uid.encode())
        best_nodes = state.node_indexes.of(claim).best(asked, most, taken, self._is_soft_tainted, start)
        state.assumed.settle(pod.uid)
        # kube-scheduler can only bind it there.
        if len(best_nodes) == 1:
            state.assumed.assume(pod.uid, best_nodes[0], claim)
        if best_nodes:
            state.waiting.fits(pod.uid)
            state.sampled.forget(pod.uid)
        return best_nodes

    def _is_soft_tainted(self, node: str) -> bool:
        facts = self._state.nodes[node].facts
        return facts is not None and any(taint.effect == "PreferNoSchedule" for taint in facts.traits.taints)

    def rank_by(self, ranking: RankingConfig) -> None:
        """Set the scoring rules; prices come with the nodes' facts (S2.8b)."""
        self._state.node_indexes.rank_by(ranking)

    def serve(self, scheduler: str, percent_of_nodes: int) -> None:
        """Pods with this ``schedulerName`` are placed by the extender from now on; the kube-scheduler that asks looks
        at ``percent_of_nodes`` (1-100).
        """
        self._state.scheduler, self._state.sampled.percent = scheduler, percent_of_nodes

    def places(self, pod: PodFacts) -> bool:
        """Return True if the pod is placed by the scheduler that the extender serves."""
        return pod.scheduler == self._state.scheduler

    def scores(self, pod: PodFacts, names: list[str]) -> list[int]:
        """Each node's score for the pod, 0-10, in the order of ``names``. Raises ``NotReadyError``."""
        self._require_ready()
        return self._state.node_indexes.of(binding.claim_of(self._state, pod)).scores(names)

    def reserve(self, pod: PodFacts, node: str) -> Reservation:
        """Bind: reserves room or refuses. Raises ``NotReadyError``, and ``UnknownPodError`` for a pod that is gone.

        Carry out its effects: the target of a migration may need less than was reserved for it.
        """
        self._require_ready()
        reservation = binding.reserve(self._state, pod, node)
        return replace(reservation, effects=self._finish(outside=False))

    def bind_done(self, uid: str, node: str) -> Effects:
        """The API accepted a bind."""
        binding.bind_done(self._state, uid, node)
        return ()

    def bind_refused(self, uid: str, node: str) -> Effects:
        """The API certainly refused a bind. A conflict is not certain: report ``bind_unknown``."""
        binding.bind_refused(self._state, uid, node)
        return self._finish(outside=False)

    def bind_unknown(self, uid: str, node: str) -> Effects:
        """A bind timed out, broke off, or met a conflict."""
        return binding.bind_unknown(self._state, uid, node)

    def pod_read(self, uid: str, found: PodFacts | None) -> Effects:
        """Apply a fresh read of the pod, None if there is no such pod (or one with another UID)."""
        if not binding.pod_read(self._state, uid, found) and found is not None:
            binding.see_pod(self._state, found)
        return self._finish(outside=True)

    def claim_of(self, pod: PodFacts) -> Resources:
        """The claim of the pod. Raises ``NotReadyError`` while its VM is unknown."""
        return binding.claim_of(self._state, pod)
