"""Actions of users, webhooks and other schedulers."""

from __future__ import annotations

import json

from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_PERMIT, LABEL_ENABLED, LABEL_WEIGHT
from protocol.units import Resources
from tests.oracle.fleet import Agent, Machine
from tests.oracle.stage import NAMES, Stage
from tests.scheduler_plugin.fake_cluster import PODS, VMS, Obj
from tests.scheduler_plugin.objects import plain_pod


class Outsiders(Stage):
    """Callers whose requests get no response."""

    def cut(self) -> None:
        self.note("watches are cut")
        self.api.cut_watches()
        if self.chance.random() < 0.4:
            self.api.forget_history()

    def webhook(self) -> None:
        """A webhook starts or stops dropping or lowering permits."""
        kinds = (None, None, None, self.drop_permit, self.lower_permit)
        self.api.webhook = self.chance.choice(kinds)
        self.note(f"webhook: {getattr(self.api.webhook, '__name__', 'none')}")
        for machine in self.fleet.machines.values():
            machine.is_tainted = machine.is_tainted or (self.api.webhook is not None and not machine.is_pod)

    @staticmethod
    def drop_permit(obj: Obj) -> None:
        obj["metadata"].get("annotations", {}).pop(ANNOTATION_PERMIT, None)

    @staticmethod
    def lower_permit(obj: Obj) -> None:
        if ANNOTATION_PERMIT in obj["metadata"].get("annotations", {}):
            obj["metadata"]["annotations"][ANNOTATION_PERMIT] = '{"vCPUs":1,"mem":"2Gi"}'

    def switch(self) -> None:
        """Autoscaling of a VM is switched off or on."""
        machine = self.any_machine()
        if machine is None:
            return
        obj = self._copied(machine)
        is_on = self.fleet.is_enabled(machine)
        obj["metadata"]["labels"][LABEL_ENABLED] = "false" if is_on else "true"
        if is_on:
            machine.off_since = self.clock.now()
        if is_on and machine.is_pod:
            # Nobody patches a pod whose label is gone: the version that its agent names is gone as well.
            machine.agents = [Agent(each.token, each.uid, True, each.sequence) for each in machine.agents]
        self.note(f"autoscaling of {machine.name} is switched {'off' if is_on else 'on'}")
        self.put(machine, obj)

    def edit_permit(self) -> None:
        """A user edits the annotation with the permit, which pods do not have."""
        machine = self.any_machine()
        if machine is None or machine.is_pod:
            return
        obj, kind = self._copied(machine), self.chance.choice(("high", "high", "low", "none", "garbage"))
        texts = {"high": '{"vCPUs":8,"mem":"16Gi"}', "low": '{"vCPUs":1,"mem":"1Gi"}', "garbage": "{"}
        annotations = obj["metadata"].setdefault("annotations", {})
        if kind == "none":
            annotations.pop(ANNOTATION_PERMIT, None)
        else:
            annotations[ANNOTATION_PERMIT] = texts[kind]
        machine.is_tainted, machine.edited_at = True, self.clock.now()
        machine.forged = Resources.parse("8", "16Gi") if kind == "high" else None
        self.note(f"somebody edits the permit of {machine.name}: {kind}")
        self.api.put(VMS, obj)

    def edit_weight(self) -> None:
        """A user sets a VM's weight."""
        machine = self.any_machine()
        if machine is not None:
            obj, weight = self._copied(machine), self.chance.choice(("1", "100", "much"))
            obj["metadata"]["labels"][LABEL_WEIGHT] = weight
            self.note(f"the weight of {machine.name} is {weight}")
            self.put(machine, obj)

    def edit_bounds(self) -> None:
        """Lower a VM's maximum, or restore it."""
        machine = self.any_machine()
        if machine is not None:
            self.bound(machine, self.chance.choice((None, self.size())))

    def bound(self, machine: Machine, most: Resources | None) -> None:
        """The VM may have ``most``; None: as much as its spec says."""
        obj = self._copied(machine)
        annotations = obj["metadata"].setdefault("annotations", {})
        annotations.pop(ANNOTATION_BOUNDS, None)
        # A pod has no bounds but these.
        most = Resources.parse(8, "16Gi") if most is None and machine.is_pod else most
        if most is not None:
            high = {"cpu": most.cpu.quantity(), "mem": most.mem.quantity()}
            annotations[ANNOTATION_BOUNDS] = json.dumps({"min": {"cpu": "250m", "mem": "1Gi"}, "max": high})
        self.note(f"somebody bounds {machine.name}: {most or 'not'}")
        self.put(machine, obj)

    def edit_use(self) -> None:
        """A user resizes a VM."""
        machine = self.any_machine()
        if machine is None:
            return
        size = self.size()
        self.note(f"somebody resizes {machine.name} to {size}")
        if not self.fleet.sleeps(machine) and not size.within(self.fleet.use(machine)):
            self.judge.outsider(self.fleet.node(machine))
        self.resize(machine, size)
        machine.own = machine.own.at_most(size)

    def foreign_pod(self) -> None:
        """A pod of another scheduler is created or deleted."""
        keys = [key for key in self.api.collections[PODS].objects if key[0] == "foreign"]
        if len(keys) > 2 or (keys and self.chance.random() < 0.6):
            self.api.remove(PODS, *self.chance.choice(sorted(keys)))
            return
        self.made += 1
        where = self.chance.choice(NAMES)
        pod = plain_pod(f"f{self.made}", str(self.chance.randint(1, 3)), "4Gi", where, namespace="foreign")
        self.judge.outsider(where)
        self.note(f"a foreign pod comes to {where}")
        self.api.put(PODS, pod)

    def roll(self) -> None:
        self.roll_node_agent(self.chance.choice(NAMES))
