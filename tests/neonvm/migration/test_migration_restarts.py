"""The API server or the runtime restarts in the middle of a migration."""

import pytest

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from tests.neonvm.runtime_fixture import DB, RuntimeFixture


async def test_api_outage_only_delays(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    runtime.api.go_away()
    await runtime.pass_time(2)
    source.arrive()
    await runtime.pass_time(28)
    assert runtime.guests.running == [target.spec.pod.name]
    runtime.api.come_back()
    await runtime.pass_time(12)
    assert await runtime.outcome() == ("Succeeded", "Migrated")
    await runtime.assert_well(target.spec.pod.name)


@pytest.mark.parametrize(
    "lost", ["PATCH /apis/vm.neon.tech/v1/namespaces/default/virtualmachinemigrations/move/status", "/pods"]
)
async def test_an_answer_that_is_lost_does_nothing_twice(runtime: RuntimeFixture, lost: str) -> None:
    await runtime.run_vm()
    runtime.api.unanswered = lost
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    assert runtime.api.unanswered == ""
    target = runtime.guests.moving.move.target  # type: ignore[union-attr]  # it is being moved
    runtime.api.unanswered = "/status"
    runtime.guests.moving.arrive()
    await runtime.settle()
    await runtime.pass_time(2)
    assert await runtime.outcome() == ("Succeeded", "Migrated")
    await runtime.assert_well(target.spec.pod.name)


@pytest.mark.parametrize("sending", [False, True])
async def test_runtime_restart_fails_migration_restarts_vm(runtime: RuntimeFixture, sending: bool) -> None:
    await runtime.run_vm()
    if not sending:
        runtime.extender.full = {"n2"}
    await runtime.ask_to_move()
    await runtime.restart()
    await runtime.pass_time(8)
    assert await runtime.outcome() == ("Failed", "RuntimeRestarted" if sending else "SourceLost")
    await runtime.assert_well(str((await runtime.status())["podName"]))


async def test_crash_after_switch_finds_vm(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    body: Json = {"status": {"podName": target.spec.pod.name}}
    await runtime.stop()
    await runtime.client.merge_patch(VIRTUAL_MACHINES, DB, body, "status")
    await runtime.start()
    await runtime.pass_time(8)
    assert (await runtime.outcome())[0] == "Succeeded"
    assert source.move is None
    await runtime.assert_well(str((await runtime.status())["podName"]))
