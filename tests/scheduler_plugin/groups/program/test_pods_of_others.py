"""Pods that a target's selector matches, and that another object controls."""

from __future__ import annotations

import yaml

from protocol.kubernetes.objects import name_of, uid_of
from protocol.kubernetes.resources import DEPLOYMENTS, PODS, REPLICA_SETS
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT
from tests.scheduler_plugin.groups.program.test_in_place import POD, begun, requests


async def test_pods_of_others_are_left_alone() -> None:
    """A canary's pods have the labels of the main Deployment and one more; they were resized to its sizes, too."""
    async with begun() as run:
        main = await run.cluster.get(DEPLOYMENTS, "resource-consumer")
        of_main = await run.cluster.make(REPLICA_SETS, replica_set("main-1", uid_of(main)))
        of_canary = await run.cluster.make(REPLICA_SETS, replica_set("canary-1", "uid-of-the-canary"))
        for name, owner in (("mine", of_main), ("canary", of_canary)):
            owners = f"ownerReferences: [{owner_text('ReplicaSet', name_of(owner).name, uid_of(owner))}]"
            await run.cluster.make(PODS, POD.replace("NAME,", f"{name}, {owners},"))
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        await run.passes(15)
        sizes = [(await requests(run, name))["cpu"] for name in ("one", "mine", "canary")]
        assert sizes == ["1500m", "1500m", "500m"]


def owner_text(kind: str, name: str, uid: str) -> str:
    return f"{{apiVersion: apps/v1, kind: {kind}, name: {name}, uid: {uid}, controller: true}}"


def replica_set(name: str, deployment: str) -> str:
    """A ReplicaSet of the Deployment with that UID."""
    found = yaml.safe_load(DEPLOYMENT)
    owner = yaml.safe_load(owner_text("Deployment", "any", deployment))
    return yaml.safe_dump({**found, "kind": "ReplicaSet", "metadata": {"name": name, "ownerReferences": [owner]}})
