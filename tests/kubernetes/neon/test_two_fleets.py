"""Two fleets in one cluster: the original's scheduler and agents have theirs, ours have ours (B.11)."""

from __future__ import annotations

import pytest

from protocol.names import ANNOTATION_APPROVED, ANNOTATION_PERMIT
from tests.kubernetes.failing.fleet import until
from tests.kubernetes.neon.stage import SETTINGS, Stage

pytestmark = pytest.mark.kubernetes

OURS = "our-scheduler"
GRANTS = {"theirs": (ANNOTATION_APPROVED, ANNOTATION_PERMIT), "ours": (ANNOTATION_PERMIT, ANNOTATION_APPROVED)}
"""By VM: the annotation of its own scheduler, and that of the other."""


async def test_two_fleets_share_nodes(stage: Stage) -> None:
    """Both run on one node, all VMs under NeonVM's own controller."""
    node = await stage.node()
    await stage.original_scheduler(node)
    await stage.original_agent(node)
    ours = await stage.our_scheduler(node, f"schedulerName: {OURS}\n{SETTINGS}", OURS)
    await stage.our_agent(node, ours, SERVED_SCHEDULER_NAME=OURS)
    await stage.vm("theirs")
    await stage.vm("ours", scheduler=OURS)
    for name in GRANTS:
        (await stage.runs(name)).load(1.5)
    for name in GRANTS:
        await stage.grows(name, "1500m")
    for name, (own, other) in GRANTS.items():
        annotations = (await stage.found(name))["metadata"]["annotations"]
        assert (own in annotations, other in annotations) == (True, False), name

    async def both_count() -> bool:
        return len(stage.booked(ours)[node]) == 2

    await until(both_count, "ours counts the VM of the other fleet")
