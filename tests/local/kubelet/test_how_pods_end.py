"""How a pod has ended is said by the pod, whatever the API makes of the first attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.kube.objects import Json, child
from tests.neonvm.stage import Stage, staged


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as opened:
        yield opened


async def assert_says_why(stage: Stage, pod: str) -> None:
    status = child((await stage.pods())[pod], "status")
    said: Json = {"phase": "Failed", "reason": "GuestEnded", "message": "the guest has ended: its strings were cut"}
    assert {key: status[key] for key in said} == said
    assert ("Failed", "the VM has ended: the guest has ended: its strings were cut") in await stage.said()


@pytest.mark.parametrize("fault", [409, 422, 500, 503])
async def test_the_reason_is_kept_where_the_api_does_not_take_it_at_once(stage: Stage, fault: int) -> None:
    pod = await stage.run_vm("Never")
    stage.api.failing, stage.api.fault = f"/pods/{pod}/status", fault
    stage.puppets.by_pod[pod].die()
    await stage.pass_time(3)
    assert stage.api.failing == ""
    await assert_says_why(stage, pod)


@pytest.mark.parametrize("trouble", ["lost", "unanswered"])
async def test_the_reason_is_kept_where_the_api_does_not_answer(stage: Stage, trouble: str) -> None:
    pod = await stage.run_vm("Never")
    setattr(stage.api, trouble, f"/pods/{pod}/status")
    stage.puppets.by_pod[pod].die()
    await stage.pass_time(3)
    assert (stage.api.lost, stage.api.unanswered) == ("", "")
    await assert_says_why(stage, pod)


async def test_a_pod_of_an_earlier_runtime_is_lost_with_it(stage: Stage) -> None:
    pod = await stage.run_vm("Never")
    await stage.restart()
    found = child((await stage.pods())[pod], "status")
    assert (found["phase"], found["message"]) == ("Failed", "the guest was lost with the runtime that had it")
