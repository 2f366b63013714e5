"""Two thousand nodes, each with room for one VM: every VM gets one of those that it may have."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.scheduling.books import overcommitted
from tests.kubernetes.scheduling.stage import AT_ONCE, Stage

pytestmark = pytest.mark.kubernetes
NODES: Final = 2_000
FEW: Final = 40


def test_vms_are_placed_among_2000_nodes(stage: Stage) -> None:
    """Fifty want one of the forty nodes of a pool, and forty want any."""
    choosy, others = [f"choosy-{number}" for number in range(FEW + 10)], [f"any-{number}" for number in range(40)]
    with ThreadPoolExecutor(AT_ONCE) as hands:
        pools = ["few"] * FEW + ["many"] * (NODES - FEW)
        list(hands.map(lambda each: stage.node(f"n{each[0]}", "1500m", "5Gi", pool=each[1]), enumerate(pools)))
        vms = dict(zip([*choosy, *others], hands.map(stage.vm, [*choosy, *others]), strict=True))
        with stage.history() as history:
            pool: dict[str, Any] = {"nodeSelector": {"story": stage.name, "pool": "few"}}
            coming = [
                hands.submit(stage.vm_pod, vm, name, **(pool if name in choosy else {})) for name, vm in vms.items()
            ]
            assert all(each.result() for each in coming)
            settle(stage, choosy, others)
    assert len(set(stage.placed().values())) == len(stage.placed())
    assert overcommitted(history.events, stage.rooms) == []
    stage.until_books_agree()


def settle(stage: Stage, choosy: Collection[str], others: Collection[str]) -> None:
    """Returns once every pod was tried, the pool is full, and all pods that may go elsewhere have a node."""

    def is_settled() -> bool:
        placed, refused = stage.placed(), stage.refused()
        in_pool = [node for node in placed.values() if int(node.rpartition("-n")[2]) < FEW]
        return len(in_pool) == FEW and set(others) <= placed.keys() and set(choosy) <= placed.keys() | refused.keys()

    eventually(is_settled, "the pool is full, and the others have places", 60.0)
