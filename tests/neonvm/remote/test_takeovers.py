"""A leader dies at any point of a migration, and something else happens before the next one acts: one guest runs in the
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.neonvm.ports import PodRole
from deploy.neonvm.qemu.machine import Decided
from protocol.kubernetes.objects import text
from protocol.kubernetes.resources import MIGRATIONS, PODS
from protocol.messages import ObjectName
from tests.neonvm.remote.fake_qemu import FakeQemu
from tests.neonvm.remote.following import follower
from tests.neonvm.remote.pods_world import World, world
from tests.neonvm.remote.world_parts import STEP

MOVE = ObjectName("default", "move")
NOTHING_OPEN = {"", "Succeeded", "Failed"}


async def begin(made: World) -> tuple[str, FakeQemu]:
    """Start to send a VM's guest. Returns its pod, and the pod's QEMU."""
    await made.boot()
    source = text(made.status, "podName")
    await made.move()
    await made.until(lambda: made.sending)
    assert made.sending is not None
    return source, made.sending


async def die_while_it_is_sent(made: World, source: str, qemu: FakeQemu) -> None:
    await made.kill()


async def die_when_all_was_sent(made: World, source: str, qemu: FakeQemu) -> None:
    await made.kill()
    qemu.has_sent()


async def die_before_the_target_is_told(made: World, source: str, qemu: FakeQemu) -> None:
    await die_when_all_was_sent(made, source, qemu)
    assert made.pods[source].decide(made.pods[target_of(made)].uid, Decided.GIVEN) is Decided.GIVEN


async def die_before_the_vm_names_the_target(made: World, source: str, qemu: FakeQemu) -> None:
    assert qemu.target is not None
    qemu.has_sent()
    for _ in range(10_000):
        if not qemu.target.runs:
            await asyncio.sleep(0)
    await made.kill()
    assert made.status["podName"] == source


def target_of(made: World) -> str:
    return text(made.migration, "targetPodName")


async def nothing_else(made: World) -> None:
    return


async def the_migration_is_deleted(made: World) -> None:
    await made.client.delete(MIGRATIONS, MOVE)


async def its_time_is_up(made: World) -> None:
    await made.client.merge_patch(MIGRATIONS, MOVE, {"spec": {"completionTimeout": 0}})


async def the_target_is_deleted(made: World) -> None:
    target = target_of(made)
    await made.client.delete(PODS, ObjectName("default", target))
    await made.until(lambda: target not in made.pods)


async def runners_are_of_the_last_release(made: World) -> None:
    """They do not report a paused guest."""
    inner = made._to_runner

    async def answer(request: httpx.Request) -> httpx.Response:
        found = made.at(request.url.host)
        stands = found is not None and found.qemu.run_state == "postmigrate"
        return httpx.Response(503) if stands and request.url.path == "/status" else await inner(request)

    made._to_runner = answer  # type: ignore[method-assign]  # the world's only way to runners


DEATHS = [
    die_while_it_is_sent,
    die_when_all_was_sent,
    die_before_the_target_is_told,
    die_before_the_vm_names_the_target,
]
EVENTS = [
    nothing_else,
    the_migration_is_deleted,
    its_time_is_up,
    the_target_is_deleted,
    runners_are_of_the_last_release,
]


@pytest.mark.parametrize("happens", EVENTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("death", DEATHS, ids=lambda each: each.__name__)
async def test_one_guest_runs_and_the_migration_ends(
    tmp_path: Path,
    death: Callable[[World, str, FakeQemu], Awaitable[None]],
    happens: Callable[[World], Awaitable[None]],
) -> None:
    async with world(tmp_path) as made:
        source, qemu = await begin(made)
        await death(made, source, qemu)
        await happens(made)
        made.start()
        if death is die_while_it_is_sent and happens in {nothing_else, runners_are_of_the_last_release}:
            await made.until(lambda: qemu.asked.count("query-migrate") > 3)
            qemu.has_sent()
        await made.until(lambda: text(made.migration, "phase") in NOTHING_OPEN and made.runs_well())
        await made.until(lambda: list(made.pods) == [made.status["podName"]])
        is_lost = happens is the_target_is_deleted and death in DEATHS[2:]
        is_at_source = death in DEATHS[:2] and happens in EVENTS[1:4]
        assert (made.doubled, made.status["podName"] == source, made.status.get("restartCount", 0)) == (
            [],
            is_at_source,
            int(is_lost),
        )


async def test_paused_source_keeps_size_unready(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        source, qemu = await begin(made)
        before = await made.ask(source, "/status")
        await made.kill()
        qemu.has_sent()
        assert (before.status_code, (await made.ask(source, "/status")).json()) == (200, before.json())
        assert (await made.ask(source, "/ready")).status_code == 503


async def test_new_leader_keeps_guest_size(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        source, _ = await begin(made)
        await made.kill()
        asked: list[str] = []

        async def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            return await made._to_runner(request)

        async with follower(made, answer) as leader:
            await made.until(lambda: leader.guest(source).role is PodRole.RUNNING)
            for _ in range(100):
                await made.clock.advance(STEP)
        assert set(asked) == {"/status"}
