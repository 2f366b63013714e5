"""A fake of NeonVM's controller and the kubelets: one step of a migration at a time, on the fake cluster.

The order of writes is that of a careful controller: the VM points to its new pod before the migration is called done.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.scheduler_plugin.fake_cluster import MIGRATIONS, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import Obj, owner_of

FINALIZER = "vm.neon.tech/finalizer"


class FakeController:
    """Carries out the migration of one VM."""

    def __init__(self, cluster: FakeCluster, vm: str) -> None:
        self.cluster = cluster
        self.vm = vm

    @property
    def name(self) -> str:
        """The VM's newest migration."""
        names = [key[1] for key, obj in self._all() if obj["spec"]["vmName"] == self.vm]
        return names[-1]

    def _all(self) -> list[tuple[tuple[str, str], Obj]]:
        return list(self.cluster.collections[MIGRATIONS].objects.items())

    @property
    def migration(self) -> Obj:
        return copy.deepcopy(self.cluster.get(MIGRATIONS, "default", self.name))

    def _status(self, **changed: Any) -> None:
        obj = self.migration
        obj["status"] = obj.get("status", {}) | changed
        self.cluster.put(MIGRATIONS, obj)

    def _vm_status(self, **changed: Any) -> None:
        obj = copy.deepcopy(self.cluster.get(VMS, "default", self.vm))
        obj["status"] |= changed
        self.cluster.put(VMS, obj)

    def _pod(self, name: str) -> Obj:
        return copy.deepcopy(self.cluster.get(PODS, "default", name))

    def accept(self) -> None:
        """Phase Pending: source and target are set, and the VM may no longer be resized."""
        obj = self.migration
        obj["metadata"]["finalizers"] = [FINALIZER]
        self.cluster.put(MIGRATIONS, obj)
        source = self.cluster.get(VMS, "default", self.vm)["status"]["podName"]
        node = self._pod(source)["spec"]["nodeName"]
        self._status(phase="Pending", sourcePodName=source, sourceNode=node)
        self._vm_status(phase="PreMigrating")

    def make_target(self) -> Obj:
        """The target pod, not scheduled yet."""
        target = f"{self.name}-pod"
        self._status(targetPodName=target)
        pod = self._pod(self.migration["status"]["sourcePodName"])
        pod["metadata"] |= {"name": target, "uid": f"uid-{target}"}
        pod["metadata"]["ownerReferences"] = [
            owner_of(self.name, self.migration["metadata"]["uid"], "VirtualMachineMigration")
        ]
        del pod["spec"]["nodeName"]
        self._own_source()
        return self.cluster.put(PODS, pod)

    def _own_source(self) -> None:
        """The migration also owns the source's pod, without controlling it."""
        source = self._pod(self.migration["status"]["sourcePodName"])
        owners = source["metadata"].get("ownerReferences", [])
        source["metadata"]["ownerReferences"] = [
            *owners,
            owner_of(self.name, self.migration["metadata"]["uid"], "VirtualMachineMigration") | {"controller": False},
        ]
        self.cluster.put(PODS, source)

    @property
    def target(self) -> Obj:
        return self._pod(self.migration["status"]["targetPodName"])

    def transfer(self) -> None:
        """Phase Running: the target pod runs, and memory is being copied."""
        self._status(phase="Running", targetNode=self.target["spec"]["nodeName"])
        self._vm_status(phase="Migrating")

    def hand_over(self) -> None:
        """The guest runs in the target pod."""
        self._vm_status(phase="Running", podName=self.target["metadata"]["name"])
        pod = self.target
        pod["metadata"]["ownerReferences"] = [owner_of(self.vm, f"vm-{self.vm}")]
        self.cluster.put(PODS, pod)

    def succeed(self) -> None:
        """The migration is done, and the source pod is deleted."""
        self._status(
            phase="Succeeded",
            info={"status": "completed", "totalTimeMs": 1500, "downtimeMs": 31},
            conditions=[self._condition("Succeeded", "")],
        )
        self.cluster.remove(PODS, "default", self.migration["status"]["sourcePodName"])

    def fail(self, why: str, reason: str = "Failed") -> None:
        """The guest keeps running in the source pod, if there is one, and the target pod is deleted."""
        target = self.migration.get("status", {}).get("targetPodName")
        if ("default", target) in self.cluster.collections[PODS].objects:
            self.cluster.remove(PODS, "default", target)
        self._status(phase="Failed", conditions=[self._condition(reason, why)])
        if ("default", self.vm) in self.cluster.collections[VMS].objects:
            self._vm_status(phase="Running")

    def _condition(self, reason: str, message: str) -> Obj:
        return {"type": "Available", "reason": reason, "message": message, "lastTransitionTime": self.cluster.stamp()}

    def obey_deletion(self) -> None:
        """A deleted migration is undone, then its finalizer is removed."""
        obj = self.migration
        assert "deletionTimestamp" in obj["metadata"]
        if obj.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            self.fail("cancelled")
            obj = self.migration
        self.cluster.remove(MIGRATIONS, "default", obj["metadata"]["name"])
