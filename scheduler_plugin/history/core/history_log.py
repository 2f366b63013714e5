"""State of a recorder between samples; turns samples into batches of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.objects import JsonObject, name_of, uid_of
from protocol.messages import ObjectName
from scheduler_plugin.databases import database_name
from scheduler_plugin.history.core.accumulation import Accumulation, SpanPace, pace_for
from scheduler_plugin.history.core.looks import (
    Account,
    ClusterSample,
    VmReader,
    VmStatus,
    decision_of,
    node_samples,
    read_account,
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

ACCOUNT_LASTS: Final[Millis] = 5 * MINUTE
"""Older explanations do not show present need and use."""


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
    """State between samples ``interval`` (ms) apart; ``labels`` are the recorded label keys."""

    def __init__(self, interval: Millis, labels: Sequence[str] = ()) -> None:
        self._interval = interval
        self._reader = VmReader(labels)
        self._vms: Accumulation[VmRecord] = Accumulation()
        self._nodes: Accumulation[NodeRecord] = Accumulation()
        self._accounts: dict[ObjectName, Account] = {}
        self._asked: dict[ObjectName, Millis] = {}
        self._standings: dict[ObjectName, VmStatus] = {}
        self._moves: dict[tuple[ObjectName, str], MoveRecord] = {}
        self._news: set[ObjectName] = set()

    def rewind(self) -> None:
        """Drop earlier samples: the clock was set back."""
        for accumulation in (self._vms, self._nodes):
            accumulation.rewind()
        for memory in (self._accounts, self._asked, self._moves):
            memory.clear()

    def asks(self, look: ClusterSample, most: int) -> list[JsonObject]:
        """VMs whose agents to query, at most ``most``."""
        vms = {database_name(vm): vm for vm in look.vms}
        # News first, then longest ago; ties by name.
        chosen = sorted(vms, key=lambda vm: (vm not in self._news, self._asked.get(vm, 0), vm))[:most]
        # Also without a response: a silent agent must not take the turns of others.
        self._asked = {vm: at for vm, at in self._asked.items() if vm in vms} | dict.fromkeys(chosen, look.at)
        return [vms[vm] for vm in chosen]

    def take(self, look: ClusterSample, answers: Mapping[ObjectName, JsonObject]) -> Batch:
        """Records to write for a sample and the agents' responses."""
        batch = Batch()
        for vm, answer in answers.items():
            # Before the samples, which use these explanations.
            self._add_decision(vm, read_account(look.at, answer), batch)
        # Their agents were queried; the samples below find the next ones.
        self._news = set()
        for facts, amounts, standing in self._reader.samples(look, self._accounts, look.at - ACCOUNT_LASTS):
            self._add_sample(look.at, facts, amounts, standing, batch)
        for node, amounts in node_samples(look):
            closed = self._nodes.take(node.node, look.at, node, amounts, self._pace)
            batch.nodes += [] if closed is None else [closed]
        # After the samples, so that only missing objects expire.
        batch.vms += self._vms.expired(look.at, self._pace)
        batch.nodes += self._nodes.expired(look.at, self._pace)
        self._add_moves(look, batch)
        self._forget({database_name(vm) for vm in look.vms})
        return batch

    def end(self) -> Batch:
        """Everything that is not written yet."""
        return Batch(vms=list(self._vms.end()), nodes=list(self._nodes.end()))

    @property
    def _pace(self) -> SpanPace:
        return pace_for(len(self._vms), self._interval)

    def _add_decision(self, vm: ObjectName, account: Account, batch: Batch) -> None:
        decision = decision_of(vm, self._accounts.get(vm), account)
        self._accounts[vm] = account
        batch.decisions += [] if decision is None else [decision]

    def _add_sample(self, at: Millis, facts: VmRecord, amounts: Row, standing: VmStatus | None, batch: Batch) -> None:
        vm = facts.vm
        ended = self._vms.take(vm, at, facts, amounts, self._pace)
        batch.vms += [] if ended is None else [ended]
        if standing is None:
            return
        before = self._standings.get(vm)
        self._standings[vm] = standing
        # A restart of the recorder is not a decision.
        if before is not None and before != standing:
            # Its agent probably has an explanation: query it first.
            self._news.add(vm)
            batch.decisions += _of_scheduler(at, vm, amounts, before, standing)

    def _add_moves(self, look: ClusterSample, batch: Batch) -> None:
        # By UID too: names may be reused.
        named = {(name_of(migration), uid_of(migration)): migration for migration in look.migrations}
        moves = {key: read_move(look.at, migration, self._moves.get(key)) for key, migration in named.items()}
        # ``read_move`` returns the same object for an ended migration.
        batch.moves += [move for key, move in moves.items() if self._moves.get(key) is not move]
        self._moves = moves

    def _forget(self, known: Iterable[ObjectName]) -> None:
        present = set(known)
        for gone in self._standings.keys() - present:
            del self._standings[gone]
        for gone in self._accounts.keys() - present:
            del self._accounts[gone]


def _of_scheduler(
    at: Millis, vm: ObjectName, amounts: Row, before: VmStatus, standing: VmStatus
) -> list[DecisionRecord]:
    sentences, is_denied = [], standing.denied != Size(0, 0)
    # The scheduler's decisions show in permits and denials.
    if standing.permit is not None and standing.permit != before.permit:
        sentences.append(f"It permits {standing.permit.resources}.")
    if standing.denied != before.denied:
        sentences.append(f"It denies {standing.denied.resources}." if is_denied else "It denies nothing more.")
    if standing.migrating != before.migrating:
        sentences.append(
            "The VM is being migrated." if standing.migrating else "The VM is not being migrated any more."
        )
    if not sentences:
        return []
    # The first columns are the size.
    cpu, mem = amounts[:2]
    size = None if cpu is None or mem is None else Size(cpu, mem)
    return [DecisionRecord(at, vm, "scheduler", tuple(sentences), size, is_denied)]
