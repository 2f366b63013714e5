"""Turns samples into batches of records, and keeps the state of a recorder between samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.objects import JsonObject, name_of, uid_of
from protocol.messages import ObjectName
from scheduler_plugin.databases import database_name
from scheduler_plugin.history.core.accumulation import Accumulation, SpanPace, pace_for
from scheduler_plugin.history.core.decoding import (
    AgentExplanation,
    ClusterSample,
    VmReader,
    VmStatus,
    new_decision,
    node_samples,
    read_explanation,
    read_move,
)
from scheduler_plugin.history.core.samples import (
    MINUTE,
    DecisionRecord,
    Millis,
    MoveRecord,
    NodeRecord,
    Row,
    Size,
    VmRecord,
)
from scheduler_plugin.history.core.spans import Span

EXPLANATION_MAX_AGE: Final[Millis] = 5 * MINUTE
"""Older explanations do not show the present need and use."""


@dataclass(slots=True)
class Batch:
    """Records of one transaction: ended spans, new decisions, and migrations."""

    vms: list[tuple[VmRecord, Span]] = field(default_factory=list)
    nodes: list[tuple[NodeRecord, Span]] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    moves: list[MoveRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.vms) + len(self.nodes) + len(self.decisions) + len(self.moves)


class HistoryLog:
    """State between samples taken every ``interval`` (ms); ``labels`` are the keys of labels to record."""

    def __init__(self, interval: Millis, labels: Sequence[str] = ()) -> None:
        self._interval = interval
        self._reader = VmReader(labels)
        self._vms: Accumulation[VmRecord] = Accumulation()
        self._nodes: Accumulation[NodeRecord] = Accumulation()
        self._explanations: dict[ObjectName, AgentExplanation] = {}
        self._queried_at: dict[ObjectName, Millis] = {}
        self._statuses: dict[ObjectName, VmStatus] = {}
        self._moves: dict[tuple[ObjectName, str], MoveRecord] = {}
        self._changed_vms: set[ObjectName] = set()

    def rewind(self) -> None:
        """Drop the state from earlier samples, because the clock was set back."""
        for accumulation in (self._vms, self._nodes):
            accumulation.rewind()
        for memory in (self._explanations, self._queried_at, self._moves):
            memory.clear()

    def vms_to_query(self, sample: ClusterSample, most: int) -> list[JsonObject]:
        """The VMs whose agents to query next, at most ``most``."""
        vms = {database_name(vm): vm for vm in sample.vms}
        # Those with news first, then those queried longest ago, then by name.
        chosen = sorted(vms, key=lambda vm: (vm not in self._changed_vms, self._queried_at.get(vm, 0), vm))[:most]
        # Even if an agent will not respond: it must not take the turns of others.
        self._queried_at = {vm: at for vm, at in self._queried_at.items() if vm in vms} | dict.fromkeys(
            chosen, sample.at
        )
        return [vms[vm] for vm in chosen]

    def take(self, sample: ClusterSample, answers: Mapping[ObjectName, JsonObject]) -> Batch:
        """Return the records to write for a sample and the agents' responses."""
        batch = Batch()
        for vm, answer in answers.items():
            # Before the samples, because these use the explanations.
            self._add_decision(vm, read_explanation(sample.at, answer), batch)
        # These agents have been queried; the samples below add the next ones.
        self._changed_vms = set()
        for facts, amounts, status in self._reader.samples(sample, self._explanations, sample.at - EXPLANATION_MAX_AGE):
            self._add_sample(sample.at, facts, amounts, status, batch)
        for node, amounts in node_samples(sample):
            closed = self._nodes.take(node.node, sample.at, node, amounts, self._pace)
            batch.nodes += [] if closed is None else [closed]
        # After the samples, so that only missing objects expire.
        batch.vms += self._vms.expired(sample.at, self._pace)
        batch.nodes += self._nodes.expired(sample.at, self._pace)
        self._add_moves(sample, batch)
        self._forget({database_name(vm) for vm in sample.vms})
        return batch

    def end(self) -> Batch:
        """Return the records that are not written yet."""
        return Batch(vms=list(self._vms.end()), nodes=list(self._nodes.end()))

    @property
    def _pace(self) -> SpanPace:
        return pace_for(len(self._vms), self._interval)

    def _add_decision(self, vm: ObjectName, explanation: AgentExplanation, batch: Batch) -> None:
        decision = new_decision(vm, self._explanations.get(vm), explanation)
        self._explanations[vm] = explanation
        batch.decisions += [] if decision is None else [decision]

    def _add_sample(self, at: Millis, facts: VmRecord, amounts: Row, status: VmStatus | None, batch: Batch) -> None:
        vm = facts.vm
        ended = self._vms.take(vm, at, facts, amounts, self._pace)
        batch.vms += [] if ended is None else [ended]
        if status is None:
            return
        before = self._statuses.get(vm)
        self._statuses[vm] = status
        # A restart of the recorder is not a decision.
        if before is not None and before != status:
            # Query its agent first, which probably has an explanation.
            self._changed_vms.add(vm)
            batch.decisions += _of_scheduler(at, vm, amounts, before, status)

    def _add_moves(self, sample: ClusterSample, batch: Batch) -> None:
        # By UID too, because names may be reused.
        named = {(name_of(migration), uid_of(migration)): migration for migration in sample.migrations}
        moves = {key: read_move(sample.at, migration, self._moves.get(key)) for key, migration in named.items()}
        # ``read_move`` returns the same object for an ended migration.
        batch.moves += [move for key, move in moves.items() if self._moves.get(key) is not move]
        self._moves = moves

    def _forget(self, known: Iterable[ObjectName]) -> None:
        present = set(known)
        for gone in self._statuses.keys() - present:
            del self._statuses[gone]
        for gone in self._explanations.keys() - present:
            del self._explanations[gone]


def _of_scheduler(at: Millis, vm: ObjectName, amounts: Row, before: VmStatus, status: VmStatus) -> list[DecisionRecord]:
    sentences, is_denied = [], status.denied != Size(0, 0)
    # Permits and denials show the scheduler's decisions.
    if status.permit is not None and status.permit != before.permit:
        sentences.append(f"It permits {status.permit.resources}.")
    if status.denied != before.denied:
        sentences.append(f"It denies {status.denied.resources}." if is_denied else "It denies nothing more.")
    if status.migrating != before.migrating:
        sentences.append("The VM is being migrated." if status.migrating else "The VM is not being migrated any more.")
    if not sentences:
        return []
    # The first two columns are the size.
    cpu, mem = amounts[:2]
    size = None if cpu is None or mem is None else Size(cpu, mem)
    return [DecisionRecord(at, vm, "scheduler", tuple(sentences), size, is_denied)]
