"""A group of VMs in an already running local cluster of real processes; a separate start would take two seconds."""

from __future__ import annotations

from deploy.kube.client import client_from_kubeconfig
from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.objects import Json, child, integer, items, text
from protocol.kubernetes.resources import ENDPOINT_SLICES, MIGRATIONS, VIRTUAL_MACHINES, VM_GROUPS
from protocol.messages import ObjectName
from protocol.names import LABEL_GROUP
from tests.local.cluster.living import seen
from tests.scheduler_plugin.groups.objects.sample_group import shop

GROUP, REPLICA = ObjectName("default", "shop"), ObjectName("default", "shop-replica-0")


def group_of_one_replica() -> Json:
    return {**shop(replicas=1), "metadata": {"name": GROUP.name, "namespace": GROUP.namespace}}


async def a_primary_and_its_replica_stand_apart_and_a_move_ends_nothing(folder: ClusterFolder) -> None:
    """The members are spread over both nodes, and the one that moves keeps serving."""
    async with client_from_kubeconfig(folder.kubeconfig) as client:
        await client.create(VM_GROUPS, GROUP.namespace, group_of_one_replica())
        await seen(folder, GROUP, lambda now: integer(now, "status", "readyReplicas") == 1, VM_GROUPS)
        members = (await client.list(VIRTUAL_MACHINES, GROUP.namespace, f"{LABEL_GROUP}={GROUP.name}")).objects
        places = {text(vm, "status", "node") for vm in members}
        assert places == {"node-1", "node-2"}
        before = await client.get(VIRTUAL_MACHINES, REPLICA)
        spec = {"vmName": REPLICA.name}
        kind: Json = {
            "apiVersion": MIGRATIONS.api_version,
            "kind": MIGRATIONS.kind,
            "metadata": {"name": "replica-away"},
        }
        await client.create(MIGRATIONS, GROUP.namespace, {**kind, "spec": spec})
        moved = await seen(folder, REPLICA, lambda now: text(now, "status", "node") != text(before, "status", "node"))
        assert text(moved, "status", "extraNetIP") == text(before, "status", "extraNetIP")
        (slice_,) = (await client.list(ENDPOINT_SLICES, GROUP.namespace)).objects
        ready = [each for each in items(slice_, "endpoints") if child(each, "conditions").get("ready") is True]
        assert [each["addresses"] for each in ready] == [[text(moved, "status", "extraNetIP")]]
