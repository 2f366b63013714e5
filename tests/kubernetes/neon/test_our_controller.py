"""The original's scheduler and agents place and size VMs that our controller runs (B.11)."""

from __future__ import annotations

import pytest

from protocol.names import ANNOTATION_APPROVED, ANNOTATION_PERMIT
from tests.kubernetes.neon.stage import Stage

pytestmark = pytest.mark.kubernetes


async def test_our_controller_works_with_original_programs(stage: Stage) -> None:
    await stage.stacks.pop("neonvm-controller").aclose()
    node = await stage.node()
    await stage.original_scheduler(node)
    await stage.original_agent(node)
    await stage.our_controller()
    await stage.vm("db")
    guest = await stage.runs("db")
    assert (await stage.found("db"))["status"]["node"] == node
    guest.load(3.0)
    await stage.grows("db", "3")
    guest.load(0.2)
    await stage.has("db", "500m", "2Gi")
    annotations = (await stage.found("db"))["metadata"]["annotations"]
    assert (ANNOTATION_APPROVED in annotations, ANNOTATION_PERMIT in annotations) == (True, False)
    assert guest.refused == []
