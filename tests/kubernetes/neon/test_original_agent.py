"""The original's agent asks our scheduler: it finds it by its label, and is admitted by a policy (B.11)."""

from __future__ import annotations

import pytest

from tests.kubernetes.failing.fleet import until
from tests.kubernetes.neon.stage import ADMITTING, METRICS, SETTINGS, Stage

pytestmark = pytest.mark.kubernetes


async def test_original_agent_works_once_admitted(stage: Stage) -> None:
    node = await stage.node()
    ours = await stage.our_scheduler(node)
    await stage.vm("db")
    guest = await stage.runs("db")
    agent = await stage.original_agent(node)

    async def is_refused() -> bool:
        return "a bearer token of the agent's service account is required" in agent.said

    await until(is_refused, "the agent is refused", 60.0)
    guest.load(3.0)
    (ours.folder / "config.yaml").write_text(SETTINGS + ADMITTING)
    await stage.has("db", "3250m", "8Gi")
    assert await stage.permit("db") == "3250m cpu, 8Gi"
    guest.load(0.2)
    await stage.has("db", "500m", "2Gi")
    status, explained = ours.explains(METRICS, "/explain/default/db")
    assert status == 200, explained
    assert guest.refused == []
