"""The cluster's store is restored while the scheduler runs: the ledger follows, and nothing is granted twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.examples import examples
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.granted import POD, granted, settled
from tests.scheduler_plugin.objects import node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import Running, running

BOTH = pytest.mark.parametrize("is_bumped", [False, True])


def use(cluster: FakeCluster, name: str, cpu: int, slots: int) -> None:
    """Set the VM's size in its object."""
    obj = cluster.get(VMS, "default", name)
    obj = {**obj, "spec": {"guest": {**obj["spec"]["guest"]}}}
    obj["spec"]["guest"]["cpus"] = {"min": "250m", "max": 8, "use": cpu}
    obj["spec"]["guest"]["memorySlots"] = {"min": 1, "max": 16, "use": slots}
    cluster.put(VMS, obj)


async def permitted(scheduler: Running, cpu: int, slots: int) -> str:
    response = await scheduler.ask(POD, cpu, slots, sequence=int(scheduler.clock.now()))
    assert response.status_code == 200, response.text
    return str(response.json()["permit"]["vCPUs"])


@BOTH
async def test_deleted_pod_that_is_back_counts(is_bumped: bool) -> None:
    clock, cluster = FakeClock(), granted()
    cluster.put(PODS, plain_pod("big", "6", "1Gi", "n1"))
    async with settled(cluster, clock) as scheduler:
        kept = cluster.backup()
        cluster.remove(PODS, "default", "big")
        await settle()
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"
        cluster.restore(kept, is_bumped=is_bumped)
        await clock.advance(5)
        assert scheduler.reserved("n1") == "7 cpu, 5Gi"
        assert await permitted(scheduler, 8, 4) == "4"


@BOTH
async def test_vm_at_former_size_counts_so(is_bumped: bool) -> None:
    clock, cluster = FakeClock(), granted()
    cluster.put(VMS, vm("other", 8, 4))
    cluster.put(PODS, vm_pod("other", "n1"))
    async with settled(cluster, clock) as scheduler:
        kept = cluster.backup()
        use(cluster, "other", 2, 4)
        await clock.advance(60)
        cluster.restore(kept, is_bumped=is_bumped)
        await clock.advance(5)
        assert scheduler.reserved("n1") == "9 cpu, 8Gi"
        assert await permitted(scheduler, 8, 4) == "2"


@BOTH
@pytest.mark.parametrize("slow", [NODES, VMS])
async def test_nothing_is_decided_before_all_is_read_again(is_bumped: bool, slow: str) -> None:
    clock, cluster = FakeClock(), granted()
    cluster.put(PODS, plain_pod("big", "6", "1Gi", "n1"))
    async with settled(cluster, clock) as scheduler:
        kept, held = cluster.backup(), asyncio.Event()
        cluster.remove(PODS, "default", "big")
        await settle()
        cluster.restore(kept, is_bumped=is_bumped)
        cluster.faults.append(Fault(lambda call: call.path == slow and call.query["limit"] != "1", hold=held, times=9))
        await clock.advance(5)
        response = await scheduler.ask(POD, 8, 4, sequence=100)
        assert (response.status_code, scheduler.parts.context.ledger.is_ready) == (503, False)
        held.set()
        await clock.advance(5)
        assert await permitted(scheduler, 8, 4) == "4"


@BOTH
async def test_cluster_without_migrations_is_served_again(is_bumped: bool) -> None:
    """A kind that the cluster lacks counts as read again, too."""
    clock, cluster = FakeClock(), granted()
    cluster.faults.append(Fault(to("GET", MIGRATIONS), refuse=404, times=1000))
    cluster.put(PODS, plain_pod("big", "6", "1Gi", "n1"))
    async with settled(cluster, clock) as scheduler:
        kept = cluster.backup()
        cluster.remove(PODS, "default", "big")
        await settle()
        cluster.restore(kept, is_bumped=is_bumped)
        await clock.advance(5)
        assert await permitted(scheduler, 8, 4) == "4"


@BOTH
async def test_pod_that_was_unbound_is_really_bound_again(is_bumped: bool) -> None:
    clock, cluster = FakeClock(), FakeCluster()
    cluster.put(NODES, node("n1"))
    async with running(cluster, clock) as scheduler:
        pod = cluster.put(PODS, plain_pod("p", "6"))
        kept = cluster.backup()
        assert await scheduler.bind(pod, "n1") == ""
        await settle()
        cluster.restore(kept, is_bumped=is_bumped)
        await clock.advance(5)
        assert await scheduler.filter(pod, "n1") == ["n1"]
        assert await scheduler.bind(pod, "n1") == ""
        assert cluster.get(PODS, "default", "p")["spec"]["nodeName"] == "n1"


async def test_unbound_pod_is_released_after_read() -> None:
    clock, cluster = FakeClock(), FakeCluster()
    cluster.put(NODES, node("n1"))
    async with running(cluster, clock) as scheduler:
        pod = cluster.put(PODS, plain_pod("p", "6"))
        kept = cluster.backup()
        assert await scheduler.bind(pod, "n1") == ""
        cluster.restore(kept)
        await clock.advance(5)
        assert scheduler.reserved("n1") == "0 cpu, 0"


async def test_permit_on_lost_history_is_withheld() -> None:
    """The restored object refuses the write by its version: what is read then is older than known."""
    clock, cluster = FakeClock(), granted()
    async with settled(cluster, clock) as scheduler:
        kept = cluster.backup()
        assert await permitted(scheduler, 2, 4) == "2"
        cluster.revision, cluster.collections = kept.revision + 10**9, kept.collections  # its watches still go on
        response = await scheduler.ask(POD, 4, 4, sequence=10**6)
        assert response.status_code == 503
        await clock.advance(60)
        assert await permitted(scheduler, 3, 4) == "3"


class Story:
    """VMs and pods are created, deleted, resized, migrated and bound; the ledger must equal that of a new scheduler."""

    def __init__(self, seed: int) -> None:
        self.chance, self.clock, self.cluster = random.Random(seed), FakeClock(), FakeCluster()
        for name in ("n1", "n2"):
            self.cluster.put(NODES, node(name, "40", "160Gi"))
        self.kept, self.made = self.cluster.backup(), 0

    def step(self) -> None:
        doings: tuple[Callable[[], None], ...] = (self.create, self.create, self.grow, self.move, self.bind)
        self.chance.choice((*doings, self.delete, self.save, self.cluster.cut_watches))()

    def create(self) -> None:
        self.made += 1
        on = self.chance.choice(("n1", "n2", None))
        if self.chance.random() < 0.5:
            self.cluster.put(PODS, plain_pod(f"p{self.made}", "1", "1Gi", on))
        else:
            self.cluster.put(VMS, vm(f"v{self.made}", 1, 1))
            self.cluster.put(PODS, vm_pod(f"v{self.made}", on))

    def grow(self) -> None:
        for _, name in self._some(VMS):
            use(self.cluster, name, self.chance.randint(1, 4), self.chance.randint(1, 4))

    def move(self) -> None:
        """The VM's pod is replaced by one on the other node."""
        for namespace, name in self._some(VMS):
            if (namespace, f"{name}-pod") in self.cluster.collections[PODS].objects:
                self.made += 1
                self.cluster.remove(PODS, namespace, f"{name}-pod")
                self.cluster.put(PODS, vm_pod(name, self.chance.choice(("n1", "n2")), uid=f"again-{self.made}"))

    def bind(self) -> None:
        for key in self._some(PODS):
            pod = self.cluster.get(PODS, *key)
            if "nodeName" not in pod["spec"]:
                self.cluster.put(PODS, {**pod, "spec": {**pod["spec"], "nodeName": self.chance.choice(("n1", "n2"))}})

    def delete(self) -> None:
        for namespace, name in self._some(PODS):
            self.cluster.remove(PODS, namespace, name)
            if (namespace, name.removesuffix("-pod")) in self.cluster.collections[VMS].objects:
                self.cluster.remove(VMS, namespace, name.removesuffix("-pod"))

    def save(self) -> None:
        self.kept = self.cluster.backup()

    def restore(self) -> None:
        self.cluster.restore(self.kept, is_bumped=self.chance.random() < 0.5)

    def _some(self, path: str) -> list[tuple[str, str]]:
        found = sorted(self.cluster.collections[path].objects)
        return self.chance.sample(found, min(1, len(found)))


def books(scheduler: Running) -> dict[str, tuple[str, str]]:
    """The node and the reservation of each pod."""
    claims = scheduler.parts.context.ledger.claims
    return {uid: (claim.node, str(claim.reserved)) for uid, claim in sorted(claims.items())}


@pytest.mark.parametrize("seed", range(examples(8, 100)))
async def test_restore_matches_new_scheduler(seed: int) -> None:
    story = Story(seed)
    async with running(story.cluster, story.clock) as scheduler:
        for _ in range(3):
            for _step in range(12):
                story.step()
                await story.clock.advance(story.chance.choice((0, 0.1, 1)))
            story.restore()
            await story.clock.advance(30)
            async with running(story.cluster, story.clock, identity="new") as fresh:
                assert books(scheduler) == books(fresh)
