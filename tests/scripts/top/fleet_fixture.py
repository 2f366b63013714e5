"""A fleet for views: a source whose VMs, nodes and troubles a test sets."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kubernetes.objects import Json
from scripts.autoscale.top.columns import TableRow
from scripts.autoscale.top.fleet import FleetSnapshot
from scripts.autoscale.top.rows import node_line, vm_row
from tests.scheduler_plugin import objects

BECAUSE = "growing for cpu busy: 1.90 of 2 vCPU are busy, which is more than 0.8 of what it has, since 12 s"


def vm(name: str, node: str = "node-1", cpus: str = "2", memory: str = "2Gi", phase: str = "Running") -> Json:
    namespace, _, plain = name.rpartition("/")
    status: Json = {"phase": phase, "node": node, "cpus": cpus, "memorySize": memory}
    return {
        "metadata": {"namespace": namespace or "default", "name": plain},
        "spec": {"guest": objects.vm(plain, 2)["spec"]["guest"]},
        "status": {key: said for key, said in status.items() if said},
    }


def agent(busy: float = 1.9, more: Json | None = None) -> Json:
    return {
        "because": BECAUSE,
        "metrics": {"cores_busy": busy, "mem_used": "1Gi"},
        "goal": {"cpu": "3", "mem": "3Gi"},
        "permit": {"cpu": "2500m", "mem": "3Gi"},
        **(more or {}),
    }


def node(name: str, excess: str = "0") -> Json:
    return {
        "name": name,
        "open": True,
        "reserved": {"cpu": "4", "mem": "1Gi"},
        "total": {"cpu": "8", "mem": "2Gi"},
        "watermark": {"cpu": "7200m", "mem": "1Gi"},
        "pressure": {"excess": {"cpu": "0", "mem": excess}},
        "pods": [{"vm": "default/db"}, {"vm": None}],
    }


DENIED: Json = {"denied": {"by": "scheduler"}}
MOVE: Json = {
    "metadata": {"namespace": "shop", "name": "m"},
    "spec": {"vmName": "orders-10"},
    "status": {
        "phase": "Running",
        "sourceNode": "node-2",
        "targetNode": "node-11",
        "info": {"ram": {"total": 100, "remaining": 25, "transferred": 75}},
    },
}
FEW = (
    vm_row(vm("shop/orders-2", cpus="250m"), agent(0.2), {}, None),
    vm_row(vm("shop/orders-10", "node-2", "4", "16Gi"), agent(3.5), {}, MOVE),
    vm_row(vm("default/a-database-with-a-long-name", memory="1536Mi"), agent(more=DENIED), {}, None),
    vm_row(vm("default/new", "", "", "", ""), {}, {}, None),
)


def many(count: int) -> tuple[TableRow, ...]:
    return tuple(
        vm_row(vm(f"default/db-{each}", f"node-{each % 50}"), agent(each / 1000), {}, None) for each in range(count)
    )


class Scene:
    """A source without a cluster. ``moved`` lists what was migrated."""

    title = "a test"

    def __init__(self, vms: Sequence[TableRow] = FEW) -> None:
        self.seen = FleetSnapshot(tuple(vms), (node_line(node("node-1")), node_line(node("node-2", "1Gi"))))
        self.moved: list[str] = []
        self.told = ["default/new has 2 vCPU."]
        self.asked: list[Sequence[str]] = []

    async def read(self, on_screen: Sequence[str]) -> FleetSnapshot:
        self.asked.append(on_screen)
        return self.seen

    async def explain(self, vm: str) -> list[str]:
        return self.told

    def question(self, vm: str) -> str:
        return f"Migrate {vm}?"

    async def move(self, vm: str) -> str:
        self.moved.append(vm)
        return f"Created migration m-1 of {vm}."
