"""An OOM-killed container is noticed at once, and gets more memory without delay (S1, S3.6)."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    HVPAS,
    PODS,
    SERVICE_ACCOUNTS,
    TORTOISES,
)
from protocol.kubernetes.timestamps import timestamp
from tests.scheduler_plugin.groups.program import test_tortoise
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, FOLLOWED, World, world
from tests.scheduler_plugin.groups.program.test_in_place import HVPA, POD, requests
from tests.scheduler_plugin.groups.program.test_problem_reports import changed

SLOW = changed(HVPA, updateMode="Template", scaleUpDelay="1h")


async def begun(run: World, hvpa: str = SLOW) -> None:
    """One replica that was scaled up a moment ago, so that more would wait for an hour."""
    await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
    await run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
    await run.cluster.make(PODS, POD.replace("NAME", "one"))
    await run.cluster.make(HVPAS, hvpa)
    await run.start()
    await run.recommend("sizes", cpu="1", memory="1Gi")
    await run.passes(20)


async def killed(run: World, pod: str = "one", container: str = "resource-consumer") -> None:
    """The kubelet has restarted a container."""
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": timestamp(run.clock.wall())}
    status: Json = {"name": container, "restartCount": 1, "lastState": {"terminated": ended}}
    await run.cluster.patch(PODS, pod, {"status": {"containerStatuses": [status]}}, "status")
    await run.passes(0)


async def explanation(run: World) -> list[str]:
    found = child(await run.cluster.get(HVPAS, "sizes"), "status")["explanation"]
    assert isinstance(found, list)
    return found


async def test_memory_grows_at_once_cpu_delays() -> None:
    async with world() as run:
        await begun(run)
        await run.recommend("sizes", cpu="2", memory="1100Mi")
        assert await run.size() == (1, {"cpu": "1", "memory": "1Gi"})
        await killed(run)
        assert await run.size() == (1, {"cpu": "1", "memory": "1100Mi"})
        assert (await explanation(run))[0].startswith("resource-consumer ran out of memory at ")


async def test_kill_is_answered_once() -> None:
    async with world(FOLLOWED) as run:
        await begun(run)
        await run.recommend("sizes", cpu="1", memory="1100Mi")
        await killed(run)
        run.cluster.connections[0].is_cut = True
        await run.start("second")
        await run.passes(20)
        await run.recommend("sizes", cpu="1", memory="1500Mi")
        await run.passes(60)
        assert (await run.size())[1] == {"cpu": "1", "memory": "1100Mi"}
        await killed(run)
        assert (await run.size())[1] == {"cpu": "1", "memory": "1500Mi"}


async def test_in_place_memory_has_no_delay() -> None:
    async with world() as run:
        await begun(run, changed(SLOW, updateMode="inPlace"))
        assert await requests(run, "one") == {"cpu": "1", "memory": "1Gi"}
        await run.recommend("sizes", cpu="1", memory="1500Mi")
        assert await requests(run, "one") == {"cpu": "1", "memory": "1Gi"}
        await killed(run)
        assert await requests(run, "one") == {"cpu": "1", "memory": "1500Mi"}
        await run.recommend("sizes", cpu="1", memory="3Gi")
        await run.passes(60)
        assert await requests(run, "one") == {"cpu": "1", "memory": "1500Mi"}


async def test_kills_of_other_workloads_and_containers_change_nothing() -> None:
    async with world() as run:
        await begun(run)
        await run.cluster.make(PODS, POD.replace("NAME", "other").replace("app: resource-consumer", "app: other"))
        await run.recommend("sizes", cpu="1", memory="1500Mi")
        await killed(run, "other")
        await killed(run, "one", "a-sidecar-without-a-size")
        await run.passes(60)
        assert (await run.size())[1] == {"cpu": "1", "memory": "1Gi"}


async def of_tortoise(found: test_tortoise.Day, pods: int) -> None:
    """So many pods, each of which is killed now."""
    await found.run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
    for number in range(pods):
        pod = POD.replace("NAME", f"web-{number}").replace("app: resource-consumer", "app: web")
        await found.run.cluster.make(PODS, pod.replace("resource-consumer", "app"))
    for number in range(pods):
        await killed(found.run, f"web-{number}", "app")


async def test_many_kills_are_an_emergency_for_five_minutes() -> None:
    async with test_tortoise.day() as found:
        await found.needs(16)
        before = await found.bounds()
        await of_tortoise(found, 4)
        assert (before, await found.bounds()) == ((4, 16), (16, 16))
        group = await found.run.cluster.get(TORTOISES, "lovely")
        assert child(group, "status")["tortoisePhase"] == "Emergency"
        found.run.clock.jump(280)
        await found.run.passes(15)
        assert await found.bounds() == (16, 16)
        await found.run.passes(30)
        least, most = await found.bounds()
        assert (4 < least < 16, most) == (True, 16)


async def test_single_leak_is_reported_only() -> None:
    """One pod of eight is killed every four minutes, and no policy scales its memory."""
    async with test_tortoise.day() as found:
        await found.needs(16)
        before = await found.bounds()
        await of_tortoise(found, 1)
        for _ in range(5):
            found.run.clock.jump(240)
            await killed(found.run, "web-0", "app")
            group = await found.run.cluster.get(TORTOISES, "lovely")
            status, reason, message = condition_of(group, "OutOfMemory")
            assert (status, reason, await found.bounds()) == ("True", "NotAnswered", before)
            assert message.startswith("app ran out of memory in 1 of 8 pods, last at ")
        found.run.clock.jump(301)
        await found.run.passes(15)
        assert condition_of(await found.run.cluster.get(TORTOISES, "lovely"), "OutOfMemory")[0] == ""


async def test_a_size_of_tomorrow_hides_no_kill() -> None:
    """``lastSized`` was written by a clock that was ahead."""
    async with world() as run:
        await begun(run)
        ahead = timestamp(run.clock.wall() + 86_400)
        await run.cluster.patch(HVPAS, "sizes", {"status": {"lastSized": ahead}}, "status")
        await run.recommend("sizes", cpu="1", memory="1100Mi")
        await killed(run)
        assert await run.size() == (1, {"cpu": "1", "memory": "1100Mi"})
