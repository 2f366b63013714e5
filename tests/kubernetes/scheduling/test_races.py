"""Many pods at once for few places: kube-scheduler filters for the next pod before it has bound the last one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.scheduling.books import overcommitted
from tests.kubernetes.scheduling.stage import AT_ONCE, Stage

pytestmark = pytest.mark.kubernetes
ROUNDS: Final = 8
RACERS: Final = 12


def test_racing_vms_never_share_a_place(stage: Stage) -> None:
    """kube-scheduler sees only what the pods ask for, and would bind all of them."""
    before = refusals(stage)
    nodes = [stage.node("one", "2500m"), stage.node("two", "1500m")]
    vms = [stage.vm(f"vm-{number}") for number in range(RACERS)]
    won: list[dict[str, int]] = []
    with stage.history() as history:
        for race in range(ROUNDS):
            names = [f"{vm['metadata']['name']}-{race}" for vm in vms]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(stage.vm_pod, vms, names))
            eventually(lambda: len(stage.placed()) + len(stage.refused()) == RACERS, "every pod was tried", 30.0)
            eventually(lambda: len(stage.placed()) == 3, "every place is taken", 30.0)
            stage.until_books_agree()
            placed = list(stage.placed().values())
            won.append({node: placed.count(node) for node in nodes})
            stage.delete_pods()
            eventually(lambda: not stage.pods(), "the track is free", 30.0)
    assert won == [dict(zip(nodes, (2, 1), strict=True))] * ROUNDS
    assert refusals(stage) > before, "there were races"
    assert overcommitted(history.events, stage.rooms) == []


def refusals(stage: Stage) -> float:
    """Number of bindings that our scheduler has refused."""
    status, metrics = stage.programs.get("/metrics")
    mark = 'autoscale_scheduler_extender_calls_total{outcome="refused",verb="bind"} '
    assert status == 200
    return sum(float(line.removeprefix(mark)) for line in metrics.splitlines() if line.startswith(mark))
