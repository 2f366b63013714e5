"""Anyone who may create migrations and pods in a namespace can name one VM in thousands of them.

Four hundred migrations with a target made each event about their VM take a quarter of a second, in which neither agents
nor kube-scheduler were answered.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from scheduler_plugin.ledger.events import Listed, MigrationSeen, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.ledger.ledger import Ledger
from tests.scheduler_plugin.ledger.fleet import NOW, amount, migration, name, node, vm, vm_pod
from tests.steps import steps

A = vm("a", amount(1), pod=name("a-pod"))


def crowd(migrations: int, pods: int, *, has_runner: bool = True) -> Ledger:
    """The VM ``a`` with this many pods and pending migrations of a tenant."""
    ledger = Ledger()
    ledger.apply(Listed([node("n1", 10_000), node("n2")], [], [A]), NOW)
    for number in range(pods):
        pod = replace(vm_pod("a", "n1", uid=f"uid-{number}"), name=name(f"pod-{number}"), has_runner=has_runner)
        ledger.apply(PodSeen(pod if has_runner else replace(pod, vm_uid=A.uid)), NOW)
    ledger.apply(PodSeen(vm_pod("a", "n1")), NOW)
    for number in range(migrations):
        facts = migration("a", MigrationPhase.PENDING, to="n2", number=number, is_ours=False)
        ledger.apply(MigrationSeen(facts), NOW)
    return ledger


@pytest.mark.parametrize(
    ("migrations", "pods", "has_runner"), [(40, 0, True), (0, 40, True), (40, 40, True), (40, 40, False)]
)
def test_work_grows_with_their_number(migrations: int, pods: int, has_runner: bool) -> None:
    """Four times as many cost about four times as much, not sixteen times."""

    def work(times: int) -> int:
        ledger = crowd(migrations * times, pods * times, has_runner=has_runner)
        return steps(lambda: ledger.apply(VmSeen(changed(A, version=2)), NOW))

    assert work(4) < 5 * work(1)
