"""The single writer of the ledger: kube-scheduler's verbs. For agents see ``permits``.

Nothing is awaited between a decision and its recording. API calls follow, and the ledger gets their outcomes even if
the caller disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

from protocol.kubernetes.api import ApiError, ApiRefusedError
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from scheduler_plugin.auth.authenticator import TokenAuthenticator
from scheduler_plugin.cluster.feed import node_facts
from scheduler_plugin.cluster.translate import ClusterNode
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.binding import PreemptionCandidate, nodes_after_preemption
from scheduler_plugin.ledger.events import BindEnded, BindRequested, PodRefused, WriteOutcome
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.outcomes import LedgerError, UnknownPodError
from scheduler_plugin.migration.mover import Mover
from scheduler_plugin.placement.verdict import Filtered, Fits, Verdict, filter_nodes
from scheduler_plugin.service.permits import Permits
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import logs, refusals
from scheduler_plugin.workers.background_tasks import BackgroundTasks
from scheduler_plugin.workers.event_recorder import SchedulerEvents
from scheduler_plugin.workers.permit_writer import PermitWriter
from scheduler_plugin.workers.problem_watcher import ProblemWatcher
from scheduler_plugin.workers.request_writer import RequestWriter


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """``leads``: this process is active. ``leader`` is the leader's identity, empty if unknown."""

    leads: bool
    leader: str


class StandbyError(Exception):
    """This process does not lead."""

    def __init__(self, leadership: LeaderStatus) -> None:
        super().__init__(refusals.NOT_LEADING.format(leader=leadership.leader or refusals.LEADER_UNKNOWN))


class ActiveService(Protocol):
    """Port of the HTTP applications."""

    @property
    def context(self) -> SchedulerContext:
        """Context for explanations, whether this process leads or not."""

    def leadership(self) -> LeaderStatus:
        """The leadership status of this process."""

    def active(self) -> Service:
        """The active service. Raises ``StandbyError``."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Background workers that carry out the ledger's decisions."""

    tasks: BackgroundTasks
    permits: PermitWriter
    events: SchedulerEvents
    mover: Mover
    problems: ProblemWatcher
    requests: RequestWriter

    async def run(self) -> None:
        """Run until cancelled."""
        # A failing worker ends all: a scheduler that lacks a part must restart.
        async with asyncio.TaskGroup() as group:
            for worker in (self.tasks, self.permits, self.events, self.mover, self.problems, self.requests):
                group.create_task(worker.run())


class Service:
    """kube-scheduler's verbs; ``permits`` are for agents."""

    def __init__(self, context: SchedulerContext, workers: Workers, authenticator: TokenAuthenticator) -> None:
        self.context = context
        self.permits = Permits(context, authenticator, workers.permits, workers.events, workers.requests)
        self._tasks, self._requests = workers.tasks, workers.requests

    def leadership(self) -> LeaderStatus:
        """It acts; see ``ActiveService``."""
        return LeaderStatus(True, self.context.writer.identity)

    def active(self) -> Service:
        """Itself; see ``ActiveService``."""
        return self

    def filter(self, pod: PodFacts, nodes: list[str]) -> Filtered:
        """The nodes that fit the pod (advisory). Raises ``LedgerError``."""
        filtered = self.context.ledger.filter(pod, nodes)
        if not filtered.fits:
            # Retry the pod if these nodes are a sample and others have room.
            self.context.report(PodRefused(pod, nodes))
            self._requests.request_vm_size(pod)
        return filtered

    def best(self, pod: PodFacts, candidates: Container[str]) -> list[str]:
        """The best of the ``candidates`` nodes, as many as configured; empty if ``filter`` must decide.

        Raises ``LedgerError``.
        """
        limit = self.context.feed.settings.candidates
        return [] if limit is None else self.context.ledger.best(pod, candidates, limit)

    def simulate(self, pod: PodFacts, nodes: list[ClusterNode]) -> Filtered:
        """The ``nodes`` that would fit the pod, without any change.

        Unknown nodes count as empty. Raises ``LedgerError``.
        """
        needed, settings = self.context.ledger.claim_of(pod), self.context.feed.settings
        present = self.context.ledger.rooms
        rooms = {
            node.name: present.get(node.name) or NodeAccount(node.name, node_facts(node, settings)).room
            for node in nodes
        }
        return filter_nodes(rooms, list(rooms), needed)

    def preempt(self, pod: PodFacts, candidates: list[PreemptionCandidate]) -> list[str]:
        """Nodes that would fit the pod without the victims. Raises ``LedgerError``."""
        ledger = self.context.ledger
        # kube-scheduler will retry on other nodes: no preemption yet.
        if ledger.is_ready and ledger.is_retried(pod.uid):
            return []
        return nodes_after_preemption(ledger.rooms, ledger.claims, ledger.claim_of(pod), candidates)

    async def bind(self, name: ObjectName, uid: str, node: str) -> str:
        """Reserve and bind (authoritative). Returns an empty text on success, otherwise the reason."""
        try:
            # Its watch may be ahead of ours.
            pod = self.context.feed.pod(name, uid) or await self._unseen_pod(name, uid)
            # Reserve before the API call: another bind could take the room during it.
            reservation = self.context.ledger.apply(BindRequested(pod, node), self.context.clock.now())
        except (LedgerError, ApiError) as error:
            return str(error)
        self.context.queues.add(reservation.effects)
        if not isinstance(reservation.verdict, Fits):
            return _refusal_text(reservation.verdict, reservation.detail)
        # kube-scheduler repeats a bind if it lost the response.
        return await self._bind_reserved(pod, node) if reservation.needs_bind else ""

    async def _unseen_pod(self, name: ObjectName, uid: str) -> PodFacts:
        pod = await self.context.feed.pods.read(name, self.context.writer.read(PODS, name))
        if pod is None or pod.uid != uid:
            raise UnknownPodError(refusals.POD_ABSENT.format(pod=name, uid=uid))
        return pod

    async def _bind_reserved(self, pod: PodFacts, node: str) -> str:
        is_settled = False
        try:
            # Raise requests, if they follow permits, before the kubelet admits the pod.
            await self._requests.raise_before_bind(pod.uid)
            await self.context.writer.bind(pod.name, pod.uid, node)
            is_settled = True
            self.context.report(BindEnded(pod.uid, node, WriteOutcome.DONE))
        except ApiRefusedError as error:
            is_settled = True
            if error.kind is RefusalKind.CONFLICT:
                return await self._conflict(pod, node, error)
            # Only a certain refusal releases the reservation.
            self.context.report(BindEnded(pod.uid, node, WriteOutcome.REFUSED))
            return refusals.BIND_REFUSED.format(error=error)
        except ApiError as error:
            details = {"pod": str(pod.name), "node": node, "reason": str(error)}
            LOG.warning(logs.BIND_IN_DOUBT, extra=details)
            return refusals.BIND_TIMED_OUT.format(error=error)
        finally:
            # Even if this task was cancelled: the binding may still land.
            if not is_settled:
                self._tasks.bind_sent(pod.uid)
                self.context.report(BindEnded(pod.uid, node, WriteOutcome.UNKNOWN))
        return ""

    async def _conflict(self, pod: PodFacts, node: str, conflict: ApiRefusedError) -> str:
        """Handle a conflict: the pod is already bound, or was replaced, so read it."""
        self.context.report(BindEnded(pod.uid, node, WriteOutcome.UNKNOWN))
        try:
            pod_now = await self._tasks.settle(pod.uid, pod.name)
        except ApiError as error:
            return refusals.BIND_IN_DOUBT.format(error=error)
        if pod_now is not None and pod_now.node == node:
            return ""
        where = None if pod_now is None else pod_now.node
        return refusals.bind_conflict(pod.name, where, exists=pod_now is not None, error=conflict)


def _refusal_text(verdict: Verdict, detail: str) -> str:
    message = "" if isinstance(verdict, Fits) else verdict.message
    return f"{message}: {detail}" if detail else message
