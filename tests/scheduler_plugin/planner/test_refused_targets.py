"""The memory of refused targets: by pair, by VM, and bounded."""

from __future__ import annotations

import pytest

from protocol.units import Instant
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.planner import refused_targets
from scheduler_plugin.planner.refused_targets import RefusedTargets
from scheduler_plugin.planner.victims import MoveDelays
from tests.scheduler_plugin.ledger.fleet import name

REST = MoveDelays()


def noted(*pairs: tuple[str, str]) -> RefusedTargets:
    refused = RefusedTargets()
    for second, (vm, node) in enumerate(pairs):
        refused.note(Ledger(), (name(vm), node), f"full {second}", Instant(float(second)), REST)
    return refused


def by_node(refused: RefusedTargets, vm: str) -> dict[str, tuple[str, int]]:
    return {node: (known.why, known.failures) for node, known in refused.of(name(vm)).items()}


def test_refusals_are_found_by_vm() -> None:
    refused = noted(("a", "n1"), ("b", "n1"), ("a", "n2"), ("a", "n1"))
    assert by_node(refused, "a") == {"n1": ("full 3", 2), "n2": ("full 2", 1)}
    assert by_node(refused, "b") == {"n1": ("full 1", 1)}
    assert by_node(refused, "c") == {}


def test_quiet_refusal_is_forgotten() -> None:
    refused = noted(("a", "n1"), ("b", "n1"))
    refused.forget_old(Instant(REST.backoff + REST.max_backoff), REST)
    assert (len(refused), by_node(refused, "a"), by_node(refused, "b")) == (1, {}, {"n1": ("full 1", 1)})


def test_oldest_refusal_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_targets, "MAX_PAIRS", 2)
    refused = noted(("a", "n1"), ("a", "n2"), ("b", "n1"))
    assert (len(refused), by_node(refused, "a")) == (2, {"n2": ("full 1", 1)})
