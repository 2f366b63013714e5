"""The API server or the runtime goes away in the middle of a migration, and comes back."""

import pytest

from deploy.kube.objects import VIRTUAL_MACHINES, Json
from tests.neonvm.stage import DB, Stage


async def test_an_api_server_that_is_away_for_half_a_minute_only_delays(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    stage.api.go_away()
    await stage.pass_time(2)
    source.arrive()
    await stage.pass_time(28)
    assert stage.puppets.running == [target.spec.pod.name]
    stage.api.come_back()
    await stage.pass_time(12)
    assert await stage.outcome() == ("Succeeded", "Migrated")
    await stage.assert_well(target.spec.pod.name)


@pytest.mark.parametrize(
    "lost", ["PATCH /apis/vm.neon.tech/v1/namespaces/default/virtualmachinemigrations/move/status", "/pods"]
)
async def test_an_answer_that_is_lost_does_nothing_twice(stage: Stage, lost: str) -> None:
    await stage.run_vm()
    stage.api.unanswered = lost
    await stage.ask_to_move()
    await stage.pass_time(2)
    assert stage.api.unanswered == ""
    target = stage.puppets.moving.move.target  # type: ignore[union-attr]  # it is being moved
    stage.api.unanswered = "/status"
    stage.puppets.moving.arrive()
    await stage.settle()
    await stage.pass_time(2)
    assert await stage.outcome() == ("Succeeded", "Migrated")
    await stage.assert_well(target.spec.pod.name)


@pytest.mark.parametrize("sending", [False, True])
async def test_a_runtime_that_is_restarted_ends_the_migration_and_starts_the_vm_anew(
    stage: Stage, sending: bool
) -> None:
    await stage.run_vm()
    if not sending:
        stage.full = {"n2"}
    await stage.ask_to_move()
    await stage.restart()
    await stage.pass_time(8)
    assert await stage.outcome() == ("Failed", "RuntimeRestarted" if sending else "SourceLost")
    await stage.assert_well(str((await stage.status())["podName"]))


async def test_a_runtime_that_dies_right_after_the_switch_knows_where_the_vm_is(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    body: Json = {"status": {"podName": target.spec.pod.name}}
    await stage.stop()
    await stage.client.merge_patch(VIRTUAL_MACHINES, DB, body, "status")
    await stage.start()
    await stage.pass_time(8)
    assert (await stage.outcome())[0] == "Succeeded"
    assert source.move is None
    await stage.assert_well(str((await stage.status())["podName"]))
