"""VMs migrate because a user or the scheduler has ordered it; some migrations fail."""

from __future__ import annotations

import json
from typing import Any

from protocol.guest.sleep import SLEEPING
from protocol.units import Resources
from tests.oracle.stage import NAMES, Stage
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, PODS, VMS, FakeCluster, Obj
from tests.scheduler_plugin.migration.fake_controller import FakeController
from tests.scheduler_plugin.objects import owner_of, token_of

ENDED = ("Succeeded", "Failed")


class Migrations(Stage):
    """The controller of migrations, one step of one migration at a time."""

    def order_move(self) -> None:
        """A user orders a migration; placement or the user chooses the node."""
        machine = self.any_machine()
        if machine is None or machine.is_pod or self.is_moving(machine.name) or self.fleet.node(machine) is None:
            return
        self.made += 1
        target = self.chance.choice((None, *NAMES))
        annotations = {} if target is None else {"autoscaling.neon.tech/target-node": target}
        name = f"move-{self.made}"
        metadata: Obj = {"namespace": "default", "name": name, "uid": f"uid-{name}", "annotations": annotations}
        metadata["creationTimestamp"] = self.api.stamp()
        self.note(f"somebody moves {machine.name} to {target}")
        self.api.put(MIGRATIONS, {"metadata": metadata, "spec": {"vmName": machine.name}})

    def is_moving(self, vm: str, phase: str | None = None) -> bool:
        """True if there is a migration of the VM that has not ended, or is in this phase."""
        phases = [_phase(each) for each in self._all() if each["spec"]["vmName"] == vm]
        return any(each not in ENDED if phase is None else each == phase for each in phases)

    def _all(self) -> list[Obj]:
        return list(self.api.collections[MIGRATIONS].objects.values())

    async def carry(self) -> None:
        """One step of one migration."""
        moves = [each for each in self._all() if _phase(each) not in ENDED or "deletionTimestamp" in each["metadata"]]
        if moves:
            await self.carry_on(self.chance.choice(moves))

    async def carry_on(self, move: Obj) -> None:
        """Execute the next step of this migration."""
        name, machine = move["metadata"]["name"], self.fleet.machines.get(move["spec"]["vmName"])
        if machine is None:
            self.api.remove(MIGRATIONS, "default", name)
            return
        controller, status = _Controller(self.api, machine.name, name, machine.uid), move.get("status", {})
        if "deletionTimestamp" in move["metadata"] and machine.pod != status.get("targetPodName"):
            controller.obey_deletion()
        elif self.chance.random() < 0.05 and machine.pod != status.get("targetPodName"):
            self.note(f"{name} fails")
            controller.fail("by the dice")
        elif not status.get("phase"):
            controller.accept()
        elif "targetPodName" not in status:
            pod = controller.make_target()
            self.api.tokens[pod["metadata"]["name"]] = token_of(pod)
        else:
            await self._with_target(controller, name, status)

    async def _with_target(self, controller: _Controller, name: str, status: Obj) -> None:
        machine, target = self.fleet.machines[controller.vm], status["targetPodName"]
        placed = controller.target["spec"].get("nodeName")
        if placed is None:
            wanted = controller.migration["metadata"]["annotations"].get("autoscaling.neon.tech/target-node")
            await self.bind_pod(controller.target, wanted or self.chance.choice(NAMES))
        elif status["phase"] == "Pending":
            controller.transfer()
        elif machine.pod != target:
            self.note(f"{machine.name} arrives on {placed}")
            if self.fleet.phase(machine) in SLEEPING:
                # It runs with what it had, whatever has been written about it since.
                machine.own = machine.slept
                controller.has = machine.own
            controller.hand_over()
            machine.pod = target
            self.new_agents(machine, controller.target)
            self.join(machine, placed)
        else:
            self.note(f"{name} succeeds")
            controller.succeed()


class _Controller(FakeController):
    """The controller of one migration of one VM (by UID)."""

    def __init__(self, cluster: FakeCluster, vm: str, name: str, uid: str) -> None:
        super().__init__(cluster, vm)
        self._name = name
        self._uid = uid
        self.has: Resources | None = None

    @property
    def name(self) -> str:
        return self._name

    def _vm_status(self, **changed: Any) -> None:
        # One that sleeps does so until its guest runs in the target.
        if "podName" not in changed and self.cluster.get(VMS, "default", self.vm)["status"]["phase"] in SLEEPING:
            return
        if self.has is not None:
            changed |= {"cpus": self.has.cpu.quantity(), "memorySize": self.has.mem.quantity()}
            changed |= {"sleep": {"state": "Awake"}}
        super()._vm_status(**changed)

    def hand_over(self) -> None:
        super().hand_over()
        pod = json.loads(json.dumps(self.target))
        pod["metadata"]["ownerReferences"] = [owner_of(self.vm, self._uid)]
        self.cluster.put(PODS, pod)


def _phase(move: Obj) -> str:
    return str(move.get("status", {}).get("phase", ""))
