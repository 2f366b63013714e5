"""A fleet of any size whose numbers are made up, alike at every run."""

from __future__ import annotations

import random

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import VM_GROUPS
from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import VmRecord
from tests.scheduler_plugin.dashboard.made_up_history import MOST, MadeUpHistory
from tests.scheduler_plugin.dashboard.page_cluster import PageCluster, Told, a_node, a_pod, amounts, nodes_answer
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, VMS, Obj
from tests.scheduler_plugin.objects import vm

SPACES = ("default", "shop", "bank")


def fleet(nodes: int, per_node: int) -> tuple[PageCluster, Told]:
    """A cluster with this many VMs, a few of them unusual, and its scheduler."""
    cluster, told, chance = PageCluster(), Told(), random.Random(7)
    answers = [_node(cluster, chance, at, per_node) for at in range(nodes)]
    told.scheduler["/nodes"] = nodes_answer(*answers)
    told.scheduler["/settings"] = {
        "scheduler_name": "autoscale-scheduler",
        "defaults": {"compute_unit": {"cpu": "250m"}},
    }
    about = {"namespace": "shop", "name": "orders"}
    told.groups["/explain/shop/VirtualMachineGroup/orders"] = {"explanation": ["Two replicas serve."]}
    group = {
        "metadata": about,
        "spec": {"replicas": 2},
        "status": {"replicas": 2, "explanation": ["Two replicas serve."]},
    }
    cluster.put(VM_GROUPS.path(), group)
    cluster.put(MIGRATIONS, a_move("shop", "db-1", "node-1", "node-2"))
    cluster.forget_history()
    return cluster, told


DECIDED = (
    (60_000, "4 cpu, 8Gi: sized for cpu busy", False),
    (300_000, "2 cpu, 4Gi: holding: less has not been proven to be enough", False),
    (600_000, "3 cpu, 6Gi: growing for cpu waiting", True),
)
"""What was decided about each VM so many ms ago."""


def speaks(told: Told, vm: str) -> None:
    """The agent and the scheduler have something to say of that VM."""
    has = {"cpu": "1", "mem": "4Gi"}
    told.agent = {
        "because": "1 cpu, 4Gi: holding: less has not been proven to be enough",
        "goal": has,
        "compute_unit": {"cpu": "250m", "mem": "1Gi"},
        "permit": {"cpu": "2", "mem": "5Gi"},
        "parts": [{"name": "memory used", "need": "3Gi", "because": "2.1 GiB are used"}],
        "metrics": {"cores_busy": 0.52, "load1": 0.6, "mem_used": "2150Mi", "mem_total": "4Gi", "age_seconds": 1.0},
    }
    pod = {
        "pod": "db-0-pod",
        "node": "node-1",
        "state": "bound",
        "reserved": {"cpu": "2", "mem": "5Gi"},
        "reservedBecause": {"permit": {"cpu": "2", "mem": "5Gi"}},
        "nodeTotal": {"cpu": "48", "mem": "96Gi"},
        "nodeReserved": {"cpu": "29", "mem": "64Gi"},
    }
    told.scheduler[f"/explain/{vm}"] = {"pods": [pod]}


def past_of(cluster: PageCluster) -> MadeUpHistory:
    """A history of all VMs of the cluster, each of which had the same at all times."""
    vms = cluster.collections[VMS].objects
    facts = [VmRecord(ObjectName(*key), str(vms[key]["status"]["node"]), "", None, MOST) for key in sorted(vms)]
    return MadeUpHistory(facts, DECIDED)


def a_move(namespace: str, name: str, source: str, target: str) -> Obj:
    """A migration that is under way."""
    ram = {"total": 1000, "remaining": 360, "transferred": 640}
    status = {"phase": "Running", "sourceNode": source, "targetNode": target, "info": {"ram": ram}}
    annotations = {"autoscaling.neon.tech/reason": f"{source} is above its watermark"}
    about = {"namespace": namespace, "name": f"{name}-moves", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": about | {"annotations": annotations}, "spec": {"vmName": name}, "status": status}


def running_vm(name: str, namespace: str, node: str, cpu: int) -> Obj:
    made = vm(name, cpu, namespace=namespace)
    made["status"] = {"node": node, "phase": "Running", "cpus": str(cpu), "memorySize": "4Gi"}
    made["metadata"].setdefault("labels", {}).update({"autoscaling.neon.tech/enabled": "true"})
    made["metadata"]["annotations"] = {"autoscaling.neon.tech/permit": f'{{"vCPUs": {cpu + 1}, "mem": "5Gi"}}'}
    return made


def _node(cluster: PageCluster, chance: random.Random, at: int, per_node: int) -> Json:
    node, pods, reserved = f"node-{at + 1}", list[Json](), 1
    for each in range(per_node):
        name, namespace, cpu = f"db-{at * per_node + each}", chance.choice(SPACES), chance.choice((1, 1, 1, 2, 2, 3))
        cluster.put(VMS, running_vm(name, namespace, node, cpu))
        reserved += cpu + 1
        is_denied = chance.random() < 0.02
        denied, promised = (amounts("1", "0"), amounts("500m", "0")) if is_denied else (amounts("0", "0"),) * 2
        moves = chance.random() < 0.01
        pods.append(
            a_pod(f"{namespace}/{name}", str(cpu + 1), "5Gi", denied=denied, promised=promised, migrating=moves)
        )
    total = max(per_node * 4, reserved)
    return a_node(
        node,
        *pods,
        total=amounts(str(total), f"{per_node * 8}Gi"),
        reserved=amounts(str(reserved), f"{per_node * 5 + 4}Gi"),
        free=amounts(str(total - reserved), f"{per_node * 3 - 4}Gi"),
        watermark=amounts(f"{total * 900}m", f"{per_node * 7}Gi"),
        pressure={"excess": amounts("1500m" if at == 3 else "0", "0")},
    )
