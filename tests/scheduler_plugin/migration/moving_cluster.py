"""Two nodes, one of them over its watermark, and a scheduler that may be restarted at any moment."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.units import Seconds
from scheduler_plugin.settings.document import parse_settings
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.migration.fake_controller import FakeController
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import SETTINGS, Running, running

SETTLED = 12.0
"""Pressure that has lasted so long moves a VM."""

FULL = ("9500m", "0")
BECAUSE = "node n1 is 0.5 vCPU above its watermark"
STARTED = ("db", "MigrationStarted", f"migrating from n1 to n2: {BECAUSE}")
SUCCEEDED = ("db", "MigrationSucceeded", "migrated from n1 to n2 in 1500 ms with a downtime of 31 ms")

FOREIGN = plain_pod("foreign", "7500m", "1Gi", "n1")
POD = vm_pod("db", "n1")


def full_cluster() -> FakeCluster:
    """n1 has 9.5 of 9 vCPUs below its watermark reserved: the VM ``db`` with 2 should go to the empty n2."""
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(NODES, node("n2"))
    cluster.put(VMS, vm("db", 2, 8))
    cluster.put(PODS, POD)
    cluster.put(PODS, FOREIGN)
    return cluster


class MovingCluster:
    """The cluster, its controller, and the scheduler that runs now."""

    def __init__(self, cluster: FakeCluster, more: str) -> None:
        self.cluster = cluster
        self.clock = FakeClock()
        cluster.stamp = lambda: micro_timestamp(self.clock.wall())
        self.controller = FakeController(cluster, "db")
        settings = parse_settings(SETTINGS + more)
        # Shorter waits than the defaults make shorter stories; a test that is about a wait sets its own.
        policy = settings.migration
        if "settleSeconds" not in more:
            policy = replace(policy, settle=Seconds(10.0))
        if "settleDeniedSeconds" not in more:
            policy = replace(policy, settle_denied=Seconds(3.0))
        self._settings = replace(settings, migration=policy)
        self._stack = AsyncExitStack()
        self.scheduler: Running

    async def start(self) -> None:
        """Replace the scheduler by one that knows only the API objects."""
        await self._stack.aclose()
        self.scheduler = await self._stack.enter_async_context(running(self.cluster, self.clock, self._settings))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def passes(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        self.scheduler.check()

    async def placed(self) -> str:
        """kube-scheduler places the target pod. Returns the node, or why there is none."""
        pod = self.controller.target
        fits = await self.scheduler.filter(pod, "n1", "n2")
        if not fits:
            return "nowhere"
        return await self.scheduler.bind(pod, fits[0]) or fits[0]

    @property
    def reserved(self) -> tuple[str, str]:
        """vCPUs reserved on n1 and n2."""
        ledger = self.scheduler.parts.context.ledger
        nodes = [ledger.nodes.get(name) for name in ("n1", "n2")]
        n1, n2 = (each.reserved.cpu.quantity() if each is not None else "gone" for each in nodes)
        return n1, n2

    @property
    def migrations(self) -> list[tuple[str, str, str]]:
        """VM, target and phase of each migration in the API."""
        found = self.cluster.collections[MIGRATIONS].objects.values()
        return [
            (
                obj["spec"]["vmName"],
                obj["metadata"].get("annotations", {}).get("autoscaling.neon.tech/target-node", ""),
                obj.get("status", {}).get("phase", ""),
            )
            for obj in found
        ]

    @property
    def events(self) -> list[tuple[str, str, str]]:
        """VM, reason and message of every event about migrations, without the estimated cost of the migration."""
        told = [one for one in self.cluster.notices if one["reason"].startswith("Migration")]
        return [(one["involvedObject"]["name"], one["reason"], one["message"].partition(";")[0]) for one in told]

    async def told(self, pod: Obj, cpu: Any = 2, slots: int = 8) -> tuple[int, bool, Any]:
        """The response to the agent in ``pod``: status, True if the size is frozen, and the permitted vCPUs."""
        answer = await self.scheduler.ask(pod, cpu, slots)
        body = answer.json()
        return answer.status_code, body.get("migrate") is not None, body.get("permit", {}).get("vCPUs")

    async def view(self, path: str) -> Any:
        return (await self.scheduler.probe(path)).json()

    def created(self) -> int:
        return len(self.cluster.made("POST", "/virtualmachinemigrations"))

    async def metrics(self) -> list[str]:
        return (await self.scheduler.probe("metrics")).text.splitlines()

    def relieve(self) -> None:
        """Remove the load from n1."""
        self.cluster.remove(PODS, "default", "foreign")

    def fill(self, name: str, cpu: str) -> None:
        """A pod of another scheduler takes room on a node."""
        self.cluster.put(PODS, plain_pod(f"foreign-{name}", cpu, "1Gi", name))

    def point_vm_to(self, pod: str) -> None:
        """The VM's status names another pod."""
        obj = copy.deepcopy(self.cluster.get(VMS, "default", "db"))
        obj["status"]["podName"] = pod
        self.cluster.put(VMS, obj)

    def let_go(self) -> None:
        """The migration's object is gone."""
        self.cluster.remove(MIGRATIONS, "default", self.controller.name)

    def order_by_hand(self, uid: str = "m-hand") -> None:
        """A user creates a migration of the VM without a target."""
        now = micro_timestamp(self.clock.wall())
        meta = {"name": "by-hand", "namespace": "default", "uid": uid, "creationTimestamp": now}
        self.cluster.put(MIGRATIONS, {"metadata": meta, "spec": {"vmName": "db"}})

    def deletion(self, name: str) -> ApiCall:
        """``kubectl delete`` of a migration."""
        uid = self.cluster.get(MIGRATIONS, "default", name)["metadata"]["uid"]
        path = f"{MIGRATIONS.rpartition('/')[0]}/namespaces/default/virtualmachinemigrations/{name}"
        return ApiCall("DELETE", path, Seconds(1), body={"preconditions": {"uid": uid}})

    # What happens, up to a point ----------------------------------------------------------------------------------

    async def started(self) -> None:
        """Ordered and accepted by the controller; its target pod waits for a node."""
        await self.passes(SETTLED)
        self.controller.accept()
        self.controller.make_target()
        await self.passes(1)

    async def finished(self) -> None:
        """Continue from there to the end of the migration."""
        assert await self.placed() == "n2"
        self.controller.transfer()
        await self.passes(1)
        self.controller.hand_over()
        await self.passes(1)
        self.controller.succeed()
        await self.passes(1)

    async def carried_out(self) -> None:
        """Carry out the orders."""
        self.controller.accept()
        self.controller.make_target()
        await self.passes(1)
        await self.finished()

    async def moved(self) -> None:
        """All of it."""
        await self.started()
        await self.finished()


@asynccontextmanager
async def moving_cluster(cluster: FakeCluster | None = None, more: str = "") -> AsyncIterator[MovingCluster]:
    """A scheduler on the full cluster, before its first decision."""
    made = MovingCluster(cluster or full_cluster(), more)
    await made.start()
    try:
        yield made
        await settle()
        made.scheduler.check()
    finally:
        await made.stop()


@asynccontextmanager
async def on_its_way() -> AsyncIterator[MovingCluster]:
    """A VM on its way."""
    async with moving_cluster() as made:
        await made.started()
        await made.placed()
        made.controller.transfer()
        yield made
