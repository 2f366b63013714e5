"""The label with a VM's weight on a node that is short of room."""

from __future__ import annotations

import pytest

from scheduler_plugin.cluster.problems import vm_problems
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_facts
from scheduler_plugin.settings.document import parse_settings
from tests.scheduler_plugin.objects import vm
from tests.scheduler_plugin.running import SETTINGS

WEIGHT = "autoscaling.neon.tech/weight"


def problems(labels: dict[str, str]) -> tuple[int, list[tuple[str, str]]]:
    """The weight that counts, and the problems of a VM with these labels."""
    obj = vm("db")
    obj["metadata"]["labels"] = labels
    read = read_vm(obj)
    return vm_facts(read).weight, vm_problems(read, parse_settings(SETTINGS))


@pytest.mark.parametrize(("label", "weight"), [("1", 1), ("30", 30), ("100", 100)])
def test_label_sets_the_weight(label: str, weight: int) -> None:
    assert problems({WEIGHT: label}) == (weight, [])


def test_vm_without_label_has_the_usual_weight() -> None:
    assert problems({}) == (10, [])


@pytest.mark.parametrize("label", ["0", "101", "-1", "1.5", "", "much", "٣", "9" * 5000])
def test_unusable_label_is_named_and_counts_as_none(label: str) -> None:
    weight, ((reason, note),) = problems({WEIGHT: label})
    assert (weight, reason) == (10, "WeightUnreadable")
    assert note.startswith(f"metadata.labels[{WEIGHT}]: expected a whole number from 1 to 100, got ")
    assert note.endswith("; using 10")
