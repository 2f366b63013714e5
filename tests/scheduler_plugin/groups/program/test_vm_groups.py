"""Groups of VMs end to end against the embedded API server: made, scaled, drained, and through any crash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from protocol.guest.database import DatabaseState
from protocol.kubernetes.objects import Json, integer, text
from protocol.kubernetes.resources import ENDPOINT_SLICES, SERVICES, VIRTUAL_MACHINES, VM_GROUPS
from protocol.kubernetes.timestamps import timestamp
from protocol.names import ANNOTATION_DRAINING
from tests.scheduler_plugin.groups.objects.sample_group import GUEST
from tests.scheduler_plugin.groups.program.cluster import Connection, condition_of, decoded
from tests.scheduler_plugin.groups.program.vm_group_story import FOLLOWED_SOON, Story, story, with_sessions


@asynccontextmanager
async def grown() -> AsyncIterator[Story]:
    """A group whose primary and replicas serve."""
    async with story() as run:
        await run.start()
        await run.create()
        await run.pass_time(6)
        yield run


async def test_group_becomes_primary_replicas_endpoint() -> None:
    async with grown() as run:
        assert await run.vms() == {"primary": "primary", "replica-0": "replica", "replica-1": "replica"}
        assert await run.offered() == ["replica-0", "replica-1"]
        assert (await run.cluster.get(SERVICES, "shop-read"))["spec"]["clusterIP"] == "None"  # type: ignore[index]
        group = await run.cluster.get(VM_GROUPS, "shop")
        assert condition_of(group, "Ready") == ("True", "AllServe", "2 of 2 replicas serve")
        scale = await run.cluster.request("GET", VM_GROUPS.path("default", "shop", "scale"))
        assert decoded(scale)["status"] == {
            "replicas": 2,
            "selector": "autoscaling.neon.tech/group=shop,autoscaling.neon.tech/role=replica",
        }


async def test_lagging_replica_does_not_serve() -> None:
    async with story() as run:
        run.databases.said["shop-replica-0"] = DatabaseState(is_standby=True, streaming=False)
        await run.start()
        await run.create(replicas=1)
        await run.pass_time(6)
        assert await run.offered() == []
        group = await run.cluster.get(VM_GROUPS, "shop")
        waits = "0 of 1 replicas serve (shop-replica-0: it does not stream from the primary)"
        assert condition_of(group, "Ready") == ("False", "ReplicasStarting", waits)
        del run.databases.said["shop-replica-0"]
        await run.pass_time(4)
        assert await run.offered() == ["replica-0"]


async def test_group_without_room_waits_for_events() -> None:
    """No node has room for its replica, and its primary is resized: nothing changes until the replica does."""
    async with story() as run:
        run.boots, way = False, run.cluster.connection()
        await run.start(way)
        await run.create(replicas=1)
        await run.pass_time(3)
        await run.serve("shop-primary", "10.100.128.0")
        await run.pass_time(30)
        before = len(way.asked)
        for cpus in range(60):
            await run.cluster.patch(VIRTUAL_MACHINES, "shop-primary", {"status": {"cpus": str(cpus)}}, "status")
            await run.pass_time(1)
        reads = [call.path for call in way.asked[before:] if ENDPOINT_SLICES.plural in call.path]
        assert ("replica-0" in await run.vms(), len(reads)) == (True, 4)
        await run.serve("shop-replica-0", "10.100.128.1")
        await run.pass_time(1)
        assert await run.offered() == ["replica-0"]


async def test_leaving_replica_is_drained() -> None:
    async with grown() as run:
        run.databases.said["shop-replica-1"] = with_sessions(2, 1.0)
        run.databases.said["shop-replica-0"] = with_sessions(4)
        await run.pass_time(16)
        await run.scale(1)
        await run.pass_time(2)
        assert (await run.vms(), await run.offered()) == (
            {"primary": "primary", "replica-0": "replica", "replica-1": "drains"},
            ["replica-0"],
        )
        await run.pass_time(12)
        assert "replica-1" in await run.vms()
        run.databases.said["shop-replica-1"] = with_sessions(0)
        await run.pass_time(3)
        assert await run.vms() == {"primary": "primary", "replica-0": "replica"}
        notes = [message for _, message in await run.cluster.events()]
        assert "draining VM shop-replica-1: there are 2 replicas, and 1 are desired" in notes
        assert "deleted VM shop-replica-1: it has no sessions left" in notes


async def test_a_replica_marked_by_a_clock_ahead_leaves() -> None:
    """Its mark lay a month ahead, and so it had been draining for no time at all until then."""
    async with story() as run:
        await run.start()
        await run.create(drain={"gracePeriod": "5s"})
        await run.pass_time(6)
        run.databases.said["shop-replica-1"] = with_sessions(2)
        ahead = timestamp(run.clock.wall() + 30 * 86_400)
        mark: Json = {"metadata": {"annotations": {ANNOTATION_DRAINING: ahead}}}
        await run.cluster.patch(VM_GROUPS, "shop", {"spec": {"replicas": 1}})
        await run.cluster.patch(VIRTUAL_MACHINES, "shop-replica-1", mark)
        await run.pass_time(15)
        assert await run.vms() == {"primary": "primary", "replica-0": "replica"}


async def test_wanted_replica_returns() -> None:
    async with grown() as run:
        run.databases.said.update({name: with_sessions(1) for name in ("shop-replica-0", "shop-replica-1")})
        await run.scale(1)
        await run.pass_time(2)
        assert (await run.vms())["replica-1"] == "drains"
        await run.scale(2)
        await run.pass_time(3)
        assert await run.vms() == {"primary": "primary", "replica-0": "replica", "replica-1": "replica"}
        assert await run.offered() == ["replica-0", "replica-1"]
        assert len([each for each in run.cluster.writes() if each.startswith("POST") and "virtualm" in each]) == 3


async def test_lost_primary_is_reported() -> None:
    async with grown() as run:
        await run.cluster.delete(VIRTUAL_MACHINES, "shop-primary")
        await run.pass_time(16)
        assert await run.vms() == {"replica-0": "replica", "replica-1": "replica"}
        assert await run.offered() == ["replica-0", "replica-1"]
        group = await run.cluster.get(VM_GROUPS, "shop")
        assert condition_of(group, "Ready")[1] == "PrimaryMissing"


async def test_bad_groups_report_and_change_nothing() -> None:
    async with story() as run:
        await run.start()
        bad: Json = {"spec": {"guest": {**GUEST, "cpus": {"min": 4, "max": 1}}}}
        await run.create(template=bad)
        await run.pass_time(3)
        group = await run.cluster.get(VM_GROUPS, "shop")
        message = "spec.template.spec.guest.cpus: expected 0 < min <= use <= max, got min 4, use 4, max 1"
        assert condition_of(group, "Accepted") == ("False", "InvalidSpec", message)
        assert await run.vms() == {}


async def test_foreign_vm_is_left_alone() -> None:
    async with story() as run:
        await run.start()
        labels = {"autoscaling.neon.tech/role": "theirs"}
        body: Json = {"metadata": {"name": "shop-primary", "labels": labels}, "spec": {"guest": GUEST}}
        await run.cluster.request("POST", VIRTUAL_MACHINES.path("default"), body)
        await run.create()
        await run.pass_time(3)
        group = await run.cluster.get(VM_GROUPS, "shop")
        assert (
            condition_of(group, "Ready")[2] == "a VirtualMachine shop-primary exists that does not belong to this group"
        )
        assert await run.vms() == {"primary": "theirs"}


async def succeeded(run: Story, *, is_applied: bool, seconds: int) -> int:
    """Lets time pass in which every process dies at its first write, after it took effect, or else before its second;
    each is succeeded by another. Returns how many there were.
    """
    processes, way = 0, None
    for _ in range(seconds):
        if way is None or way.is_cut:
            way = run.cluster.connection()
            way.cut_at, way.is_applied = (0, True) if is_applied else (1, False)
            await run.start(way)
            processes += 1
        await run.pass_time(1)
    return processes


@pytest.mark.parametrize("is_applied", [False, True])
async def test_kill_at_every_write_is_safe(is_applied: bool) -> None:
    async with story(FOLLOWED_SOON) as run:
        await run.create()
        processes = await succeeded(run, is_applied=is_applied, seconds=50)
        assert await run.vms() == {"primary": "primary", "replica-0": "replica", "replica-1": "replica"}
        await run.scale(1)
        processes += await succeeded(run, is_applied=is_applied, seconds=30)
        assert (await run.vms(), await run.offered()) == ({"primary": "primary", "replica-0": "replica"}, ["replica-0"])
        assert processes > 10
        assert sorted(each for each in run.cluster.writes() if each.startswith(("POST", "DELETE"))) == sorted(
            [
                f"POST {SERVICES.path('default')}",
                f"POST {ENDPOINT_SLICES.path('default')}",
                *[f"POST {VIRTUAL_MACHINES.path('default')}"] * 3,
                f"DELETE {VIRTUAL_MACHINES.path('default', 'shop-replica-1')}",
            ]
        )


async def test_group_adds_and_removes_replica() -> None:
    async with story() as run:
        program = await run.start()
        delays = {"window": "10s", "scaleUpDelay": "10s", "scaleDownDelay": "20s"}
        scaling = {"minReplicas": 1, "maxReplicas": 2, **delays}
        await run.create(replicas=1, scaling=scaling)
        run.databases.busy.update({"shop-replica-0": 1.0, "shop-replica-1": 1.0})
        await run.pass_time(15)
        assert await run.offered() == ["replica-0"]
        run.databases.busy["shop-replica-0"] = 3.9
        await run.pass_time(25)
        assert await run.offered() == ["replica-0", "replica-1"]
        run.databases.busy.update({"shop-replica-0": 0.5, "shop-replica-1": 0.5})
        await run.pass_time(15)
        story_of_load = "CPUs busy over 10 s; target per replica: 70% of at most 4 CPUs"
        assert (await run.status())["scaling"] == {
            "replicas": 2,
            "wanted": 1,
            "rule": "Delay",
            "message": f"1.0 {story_of_load}; the delay of 20 s is not over",
            "lastScaleUp": "2026-01-01T00:17:05Z",
            "fewerSince": "2026-01-01T00:17:30Z",
        }
        await run.pass_time(25)
        assert await run.vms() == {"primary": "primary", "replica-0": "replica"}
        notes = [message for _, message in await run.cluster.events()]
        assert [note for note in notes if "→" in note] == [
            f"1 → 2 replicas: 3.9 {story_of_load}",
            f"2 → 1 replicas: 1.0 {story_of_load}",
        ]
        page = program.page().decode()
        assert 'autoscale_groups_count{kind="VirtualMachineGroup"} 1.0' in page
        assert 'scalings_total{axis="horizontal",direction="up",kind="VirtualMachineGroup"} 1.0' in page


@pytest.mark.parametrize("write", range(4))
async def test_successor_completes_scaling_once(write: int) -> None:
    async with story(FOLLOWED_SOON) as run:
        delays = {"window": "10s", "scaleUpDelay": "30s", "scaleDownDelay": "20s"}
        await run.create(replicas=1, scaling={"minReplicas": 1, "maxReplicas": 3, **delays})
        way = run.cluster.connection()
        await run.start(way)
        run.databases.busy.update(dict.fromkeys(("shop-replica-0", "shop-replica-1", "shop-replica-2"), 3.9))
        await run.pass_time(9)
        way.cut_at, way.is_applied = way.count + write, True
        (first, up), (second, again) = await scaled(run, way, 80)
        assert (way.is_cut, up, again) == (True, 2, 3)
        assert second - first >= 30  # the delay holds for the successor too
        run.databases.busy.update(dict.fromkeys(run.databases.busy, 0.1))
        assert [count for _, count in await scaled(run, way, 60)] == [1]


async def scaled(run: Story, way: Connection, seconds: int) -> list[tuple[int, int]]:
    """Times of changes of the replica count, in a period in which a process that dies has a successor."""
    changes, known, succeeded = [], await replicas(run), way.is_cut
    for second in range(seconds):
        if way.is_cut and not succeeded:
            succeeded = True
            await run.start()
        await run.pass_time(1)
        if (count := await replicas(run)) != known:
            known = count
            changes.append((second, count))
    return changes


async def replicas(run: Story) -> int:
    return integer(await run.cluster.get(VM_GROUPS, "shop"), "spec", "replicas")


async def test_silent_replica_leaves_endpoint() -> None:
    async with grown() as run:
        run.databases.said["shop-replica-0"] = None
        await run.pass_time(15)
        assert await run.offered() == ["replica-0", "replica-1"]
        await run.pass_time(30)
        assert await run.offered() == ["replica-1"]
        said = "1 of 2 replicas serve (shop-replica-0: its agent does not report the state of its database)"
        assert condition_of(await run.cluster.get(VM_GROUPS, "shop"), "Ready")[2] == said
        run.databases.said["shop-replica-1"] = None
        await run.pass_time(90)
        assert await run.offered() == ["replica-1"]
        del run.databases.said["shop-replica-0"]
        await run.pass_time(4)
        assert await run.offered() == ["replica-0"]


async def test_the_slice_is_written_only_when_it_changes() -> None:
    async with story() as run:
        await run.start()
        await run.create(replicas=1)
        await run.pass_time(40)
        slices = [each for each in run.cluster.writes() if ENDPOINT_SLICES.plural in each]
        assert len(slices) == 2


async def test_foreign_service_is_not_used() -> None:
    async with story() as run:
        theirs: Json = {"metadata": {"name": "shop-read"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80}]}}
        await run.cluster.request("POST", SERVICES.path("default"), theirs)
        await run.start()
        await run.create(replicas=1)
        await run.pass_time(6)
        assert await run.cluster.every(ENDPOINT_SLICES) == []
        group = await run.cluster.get(VM_GROUPS, "shop")
        said = "Service shop-read does not belong to this group, so the read endpoint is not written"
        assert condition_of(group, "Ready") == ("False", "NotWritten", said)
        await run.cluster.delete(SERVICES, "shop-read")
        await run.pass_time(16)
        assert await run.offered() == ["replica-0"]


async def test_a_service_that_was_deleted_is_made_again() -> None:
    async with story() as run:
        await run.start()
        await run.create(replicas=1)
        await run.pass_time(6)
        await run.cluster.delete(SERVICES, "shop-read")
        await run.pass_time(16)
        assert [text(each, "metadata", "name") for each in await run.cluster.every(SERVICES)].count("shop-read") == 1


async def test_refused_replica_is_reported() -> None:
    async with story() as run:
        way = run.cluster.connection()
        await run.start(way)
        await run.create()
        await run.pass_time(6)
        way.refuse = {f"POST {VIRTUAL_MACHINES.path('default')}": 403}
        await run.scale(3)
        run.databases.said["shop-replica-0"] = DatabaseState(is_standby=True, streaming=False)
        await run.pass_time(16)
        assert await run.offered() == ["replica-1"]
        status, reason, message = condition_of(await run.cluster.get(VM_GROUPS, "shop"), "Ready")
        assert (status, reason) == ("False", "NotWritten")
        assert message.startswith("VM shop-replica-2 cannot be created: ")
        way.refuse = {}
        await run.pass_time(16)
        assert "replica-2" in await run.vms()


@pytest.mark.parametrize(
    "refused",
    [
        f"POST {SERVICES.path('default')}",
        f"PATCH {ENDPOINT_SLICES.path('default')}",
        f"DELETE {VIRTUAL_MACHINES.path('default')}",
    ],
)
async def test_refused_change_is_reported(refused: str) -> None:
    """A quota of Services, or a webhook that protects VMs: the group had no status at all, or an old one."""
    async with story() as run:
        way = run.cluster.connection()
        way.refuse = {refused: 403}
        await run.start(way)
        await run.create(replicas=1)
        await run.pass_time(6)
        await run.scale(0)
        await run.pass_time(20)
        said = "the API server refuses a change of the group: 403: no"
        assert condition_of(await run.cluster.get(VM_GROUPS, "shop"), "Ready") == ("False", "NotWritten", said)
        way.refuse = {}
        await run.pass_time(30)
        assert await run.vms() == {"primary": "primary"}
        assert condition_of(await run.cluster.get(VM_GROUPS, "shop"), "Ready")[0] == "True"
