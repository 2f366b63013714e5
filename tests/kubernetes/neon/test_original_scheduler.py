"""Our agent asks the original's scheduler: in its version, with a compute unit of the agent's own (B.11)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from protocol.names import ANNOTATION_APPROVED, ANNOTATION_PERMIT
from protocol.permits import decode_permit
from protocol.units import Resources
from tests.kubernetes.failing.fleet import until
from tests.kubernetes.neon.placed_program import Program
from tests.kubernetes.neon.stage import Stage
from tests.kubernetes.real_kubernetes import PATIENCE

pytestmark = pytest.mark.kubernetes

BINDING: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/autoscaling-permits"
WORDS: Final = {"SCHEDULER_PROTOCOL": "v5.0", "COMPUTE_UNIT": "250m,1Gi", "SCHEDULER_TOKEN_FILE": ""}


@asynccontextmanager
async def no_stored_permits(stage: Stage) -> AsyncIterator[None]:
    """The policy that holds agents to stored permits is off: this scheduler stores none that the policy knows."""
    binding = (await stage.fleet.http.get(BINDING)).json()
    await stage.fleet.http.delete(BINDING)
    try:
        yield
    finally:
        kept = {key: binding[key] for key in ("apiVersion", "kind", "spec")}
        await stage.fleet.create(BINDING.rpartition("/")[0], kept | {"metadata": {"name": "autoscaling-permits"}})


def presented(theirs: Program) -> list[Resources | None]:
    """The last permit in each request that the scheduler has answered, from its log."""
    found = re.findall(r'Handled agent request.*?"lastPermit":(null|\{.*?\})', theirs.said)
    return [None if each == "null" else decode_permit(each) for each in found]


async def test_our_agent_works_with_original_scheduler(stage: Stage) -> None:
    node = await stage.node()
    async with no_stored_permits(stage):
        theirs = await stage.original_scheduler(node)
        await stage.vm("db")
        guest = await stage.runs("db")
        await stage.our_agent(node, theirs, **WORDS)
        guest.load(3.0)
        await stage.grows("db", "3")
        annotations = (await stage.found("db"))["metadata"]["annotations"]
        assert ANNOTATION_PERMIT not in annotations
        assert ANNOTATION_APPROVED in annotations
        assert '"protoVersion":7' in theirs.said

        async def has_answered() -> bool:
            return theirs.said.count("Handled agent request") > 2

        await until(has_answered, "it has answered the first request, a growth and what follows it", PATIENCE)
        assert "Protocol version mismatch" not in theirs.said
        assert guest.refused == []


async def test_stored_permit_is_not_sent_to_original_scheduler(
    stage: Stage,
) -> None:
    """It grants at once what an agent says it was permitted, whether or not there is room."""
    node = await stage.node()
    left = json.dumps({"vCPUs": "4", "mem": "8Gi"})
    async with no_stored_permits(stage):
        theirs = await stage.original_scheduler(node)
        await stage.vm("db", annotations={ANNOTATION_PERMIT: left})
        guest = await stage.runs("db")
        guest.load(1.5)
        agent = await stage.our_agent(node, theirs, **WORDS)
        await stage.grows("db", "1750m")
        await stage.end(agent)
        before = len(presented(theirs))
        await stage.our_agent(node, theirs, **WORDS)

        async def has_asked() -> bool:
            return None in presented(theirs)[before:]

        await until(has_asked, "the agent that starts anew has asked, without a permit of its own", PATIENCE)
        assert Resources.parse(4, "8Gi") not in presented(theirs)
        annotations = (await stage.found("db"))["metadata"]["annotations"]
        assert annotations[ANNOTATION_PERMIT] == left
        assert decode_permit(annotations[ANNOTATION_APPROVED]) != Resources.parse(4, "8Gi")
