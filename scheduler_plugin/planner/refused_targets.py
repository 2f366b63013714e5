"""Targets that kube-scheduler recently refused, per VM: reasons that the planner cannot check itself (S4.8).

A failed pair of VM and node is skipped for a while, twice as long after each further failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Instant
from scheduler_plugin.constraints.model import NodeTraits, PodConstraints
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.planner.victims import MoveDelays
from scheduler_plugin.texts import explanations

MAX_PAIRS: Final = 20_000
"""The oldest are dropped first."""

Pair = tuple[ObjectName, str]
"""A VM and a node."""

Fingerprint = tuple[PodConstraints | None, NodeTraits | None]


@dataclass(frozen=True, slots=True)
class TargetRefusal:
    """``failures`` in a row; skip the pair until ``until``, or until the ``fingerprint`` of VM and node changes."""

    why: str
    failures: int
    until: Instant
    fingerprint: Fingerprint


class RefusedTargets:
    """At most ``MAX_PAIRS`` pairs, in memory only: a restart costs one attempt per pair."""

    def __init__(self) -> None:
        self._pairs: dict[Pair, TargetRefusal] = {}
        self._of_vm: dict[ObjectName, dict[str, TargetRefusal]] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def note(self, ledger: Ledger, pair: Pair, why: str, now: Instant, delays: MoveDelays) -> None:
        """Record that the VM's target pod was not placed on the node."""
        fingerprint = _fingerprint(ledger, *pair)
        # Reinsert it as the newest.
        previous = self._drop(pair)
        # Start over for a changed VM or node.
        failures = 1 if previous is None or previous.fingerprint != fingerprint else previous.failures + 1
        vm, node = pair
        refusal = TargetRefusal(why, failures, Instant(now + delays.after(failures)), fingerprint)
        self._pairs[pair] = self._of_vm.setdefault(vm, {})[node] = refusal
        if len(self._pairs) > MAX_PAIRS:
            self._drop(next(iter(self._pairs)))

    def refusal_reason(self, ledger: Ledger, vm: ObjectName, node: str, now: Instant) -> str | None:
        """The reason not to try the node for the VM now; None if there is none."""
        refusal = self._pairs.get((vm, node))
        if refusal is None or refusal.until <= now or refusal.fingerprint != _fingerprint(ledger, vm, node):
            return None
        return explanations.REFUSED_LATELY.format(why=refusal.why)

    def of(self, vm: ObjectName) -> Mapping[str, TargetRefusal]:
        """The VM's refusals by node, read-only."""
        return self._of_vm.get(vm, {})

    def forget_old(self, now: Instant, delays: MoveDelays) -> None:
        """Drop pairs that have not failed again."""
        # A pair that could be tried for the longest wait without a failure starts over.
        for pair in [pair for pair, refusal in self._pairs.items() if refusal.until + delays.max_backoff <= now]:
            self._drop(pair)

    def _drop(self, pair: Pair) -> TargetRefusal | None:
        refusal = self._pairs.pop(pair, None)
        if refusal is not None:
            vm, node = pair
            del self._of_vm[vm][node]
            if not self._of_vm[vm]:
                del self._of_vm[vm]
        return refusal


def _fingerprint(ledger: Ledger, vm: ObjectName, node: str) -> Fingerprint:
    account, node_account = ledger.vms.get(vm), ledger.nodes.get(node)
    return (
        None if account is None or account.facts is None else account.facts.constraints,
        None if node_account is None or node_account.facts is None else node_account.facts.traits,
    )
