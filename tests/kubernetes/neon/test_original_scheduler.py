"""Our agent asks the original's scheduler: in its version, with a compute unit of the agent's own (B.11)."""

from __future__ import annotations

import pytest

from tests.kubernetes.failing.fleet import until
from tests.kubernetes.neon.placed_program import PATIENCE
from tests.kubernetes.neon.stage import Stage

pytestmark = pytest.mark.kubernetes

APPROVED = "internal.autoscaling.neon.tech/resources-approved"
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/autoscaling-permits"


async def test_our_agent_holds_a_whole_conversation_with_it(stage: Stage) -> None:
    """The policy that holds agents to stored permits is off: this scheduler stores none that the policy knows."""
    node = await stage.node()
    binding = (await stage.fleet.http.get(BINDING)).json()
    await stage.fleet.http.delete(BINDING)
    try:
        theirs = await stage.original_scheduler(node)
        await stage.vm("db")
        guest = await stage.runs("db")
        words = {"SCHEDULER_PROTOCOL": "v5.0", "COMPUTE_UNIT": "250m,1Gi", "SCHEDULER_TOKEN_FILE": ""}
        await stage.our_agent(node, theirs, **words)
        guest.load(3.0)
        await stage.grows("db", "3")
        annotations = (await stage.found("db"))["metadata"]["annotations"]
        assert "autoscaling.neon.tech/permit" not in annotations
        assert APPROVED in annotations
        assert '"protoVersion":7' in theirs.said

        async def has_answered() -> bool:
            return theirs.said.count("Handled agent request") > 2

        await until(has_answered, "it has answered the first request, a growth and what follows it", PATIENCE)
        assert "Protocol version mismatch" not in theirs.said
        assert guest.refused == []
    finally:
        kept = {key: binding[key] for key in ("apiVersion", "kind", "spec")}
        await stage.fleet.create(BINDING.rpartition("/")[0], kept | {"metadata": {"name": "autoscaling-permits"}})
