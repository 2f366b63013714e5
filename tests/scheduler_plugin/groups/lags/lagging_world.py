"""An Hvpa over the lag model of ``autoscale replay``: the objects of a cluster as they are, judged by the real program.

Only the writes are played. Memory is in the status, as in a cluster, so it is written and read again at every look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil, inf
from typing import Any, Final

import yaml

from protocol.kubernetes.objects import Json, child, integer, items, text
from protocol.units import MilliCpu
from scheduler_plugin.groups.controllers.group_controller import refused, without_intent
from scheduler_plugin.groups.controllers.policies import GroupFacts, HvpaPolicy
from scheduler_plugin.groups.controllers.reconcile import RESIZABLE, ReconcileResult, reconcile
from scheduler_plugin.groups.core.recommender import horizontal, vertical
from scheduler_plugin.groups.core.workload import ReplicaBounds, ResourceList
from scripts.autoscale.replay.groups.lagging_group import NAME, LaggingGroup, Lags, Rollout

LOOK: Final = 15.0
TARGET: Final = 80
BEGIN: Final = datetime(2026, 5, 4, tzinfo=UTC)

HVPA = """
apiVersion: autoscaling.k8s.io/v1alpha1
kind: Hvpa
metadata: {name: shop, namespace: default, uid: hvpa, generation: 1}
spec:
  targetRef: {apiVersion: apps/v1, kind: KIND, name: shop}
  scalingIntervals:
  - {maxReplicas: 4, maxResources: {cpu: "1"}}
  - {maxResources: {cpu: "4"}}
  hpaTemplate: {minReplicas: 2, maxReplicas: 20}
  vpaTemplate:
    resourcePolicy:
      containerPolicies: [{containerName: "*", minAllowed: {cpu: 100m}, maxAllowed: {cpu: "4"}}]
"""
"""The example of docs/groups.md."""


def hvpa(lags: Lags, **spec: Any) -> Json:
    """The Hvpa, whose pods get their size as ``lags`` say."""
    found: Json = yaml.safe_load(HVPA.replace("KIND", kind_of(lags)))
    in_place = {"updateMode": "InPlace"} if lags.rollout is Rollout.IN_PLACE else {}
    return {**found, "spec": {**child(found, "spec"), **in_place, **spec}}


def kind_of(lags: Lags) -> str:
    return "StatefulSet" if lags.rollout is Rollout.ON_DELETE else "Deployment"


@dataclass(frozen=True)
class Looks:
    """The orders at each step, and the part that pods can have, in thousandths of a vCPU."""

    ordered: list[int]
    possible: list[int]

    def falls_short(self, need: Fraction) -> bool:
        """True if less than ``need`` was ordered once enough was; rounding is no lack."""
        reached = next((at for at, each in enumerate(self.possible) if each >= need), len(self.possible))
        return any(each < need * Fraction(98, 100) for each in self.possible[reached:])


@dataclass
class LaggingWorld:
    """The group, its pods, and its recommenders. ``orders`` has replicas and size after each look that wrote any."""

    lags: Lags
    group: Json
    pods: LaggingGroup
    with_vpa: bool = True
    utilisation_only: bool = False
    seconds: float = 0.0
    orders: list[tuple[float, int, int]] = field(default_factory=list)
    _policy: HvpaPolicy = field(default_factory=HvpaPolicy)
    _desired_counts: horizontal.DesiredCounts = field(default_factory=horizontal.DesiredCounts)
    _history: vertical.History = field(default_factory=dict)
    _template: int = 0

    def __post_init__(self) -> None:
        self._template = self.pods.size

    @property
    def ordered(self) -> int:
        """The ordered amount, in thousandths of a vCPU."""
        return self.pods.replicas * self.pods.size

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and message of a condition of the group; empty if it is not there."""
        for each in items(self.group, "status", "conditions"):
            if text(each, "type") == kind:
                return text(each, "status"), text(each, "message")
        return "", ""

    def has_run_for_a_day(self, demand: int) -> None:
        """The VPA has seen a day of that demand."""
        for minute in range(-1440, 0):
            self._observe(demand // self.pods.replicas, minute * 60.0)

    def _observe(self, used: int | None, at: float) -> None:
        """A sample of one pod: a VPA recommends by what single pods use."""
        if used is not None:
            self._history = vertical.observed(self._history, NAME, [ResourceList(MilliCpu(used))], at)

    def runs(self, seconds: float, demand: int) -> Looks:
        """Looks for so long, while the replicas share this many thousandths of a vCPU."""
        found = Looks([], [])
        for _ in range(ceil(seconds / LOOK)):
            self.pods.advance(self.seconds, demand)
            self._look()
            found.ordered.append(self.ordered)
            largest = self.lags.largest if self.lags.rollout is Rollout.IN_PLACE else inf
            found.possible.append(self.pods.replicas * int(min(self.pods.size, largest)))
            self.seconds += LOOK
        return found

    def _look(self) -> None:
        now = BEGIN + timedelta(seconds=self.seconds)
        measured = self.pods.measured()
        hpa, vpa = self._hpa(measured), self._vpa(measured)
        policy, pods = self._policy, tuple(self._pods())
        target, pause = self._target(), timedelta(seconds=LOOK)
        facts = GroupFacts(
            self.group, policy.desired(self.group), target=target, hpa=hpa, vpa=vpa, pods=pods, pause=pause
        )
        found = reconcile(policy, facts, now)
        assert found.problem is None, found.problem
        self._carry_out(found, now)

    def _carry_out(self, found: ReconcileResult, now: datetime) -> None:
        self.group = {**self.group, "status": found.status}
        replicas, size = self.pods.replicas, self.pods.size
        intent, sizes = found.intent, found.sizes
        if intent is not None:
            replicas = replicas if intent.replicas is None else intent.replicas[1]
            sizes = intent.after or sizes
            self.group = {**self.group, "status": without_intent(self.group, intent)}
        amounts = [each.requests.cpu for each in sizes]
        size = amounts[0].value if amounts and amounts[0] is not None else size
        if (replicas, size) != (self.pods.replicas, self.pods.size):
            self.pods.order(replicas, size)
            self.orders.append((self.seconds, replicas, size))
        if self.lags.rollout is not Rollout.IN_PLACE:
            self._template = size
        why = "shop-0 cannot be resized: Infeasible: the node is too small" if self.pods.is_refused else ""
        self.group = {**self.group, "status": refused(self.group, RESIZABLE, why, now.timestamp())}

    def _target(self) -> Json:
        pods, template = self.pods, self._template
        updated = len(pods.pods)
        if self.lags.rollout is not Rollout.IN_PLACE:
            updated = sum(pod.size == template for pod in pods.pods)
        status = {
            "observedGeneration": 1,
            "replicas": len(pods.pods),
            "updatedReplicas": updated,
            "readyReplicas": len(pods.ready),
        }
        spec = {"replicas": pods.replicas, "template": {"spec": {"containers": [container(template)]}}}
        metadata = {"namespace": "default", "name": "shop", "uid": "shop", "resourceVersion": "1", "generation": 1}
        kind = kind_of(self.lags)
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}

    def _pods(self) -> list[Json]:
        ready = {pod.serial for pod in self.pods.ready}
        return [
            {
                "metadata": {"name": f"shop-{pod.serial}", "namespace": "default", "uid": f"pod-{pod.serial}"},
                "spec": {"containers": [container(pod.size)]},
                "status": {"conditions": [{"type": "Ready", "status": str(pod.serial in ready)}]},
            }
            for pod in self.pods.pods
        ]

    def _hpa(self, measured: list[horizontal.ReplicaUse]) -> Json:
        """The HPA as its controller leaves it."""
        spec = child(self.group, "spec", "hpaTemplate")
        bounds = ReplicaBounds(integer(spec, "minReplicas"), integer(spec, "maxReplicas"))
        rules = horizontal.HorizontalRules(bounds, (horizontal.MetricTarget(utilization=TARGET),))
        found, self._desired_counts = horizontal.recommended(
            rules, self.pods.replicas, measured, self._desired_counts, self.seconds
        )
        target: Json = {"type": "Utilization", "averageUtilization": TARGET}
        metrics = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
        body: Json = {**owned("hpa"), "spec": {**spec, "metrics": metrics}}
        counted = [(each.used, each.request) for each in measured if each.ready and each.used is not None]
        if found is None or not counted:
            return {**body, "status": {"desiredReplicas": 0}}
        used, requested = sum(use for use, _ in counted), sum(request for _, request in counted)
        current: Json = {"averageUtilization": used * 100 // requested}
        if not self.utilisation_only:
            current["averageValue"] = f"{used // len(counted)}m"
        seen = [{"type": "Resource", "resource": {"name": "cpu", "current": current}}]
        return {**body, "status": {"desiredReplicas": found.desired, "currentMetrics": seen}}

    def _vpa(self, measured: list[horizontal.ReplicaUse]) -> Json:
        """The VPA as its recommender leaves it; silent without one."""
        for each in measured:
            self._observe(each.used, self.seconds)
        found = vertical.recommended(self._history, 1)
        rows: list[Json] = []
        if found is not None and self.with_vpa:
            rows = [
                {"containerName": each.name, "target": {"cpu": str(each.target.cpu)}}
                for each in found.containers
                if each.target.cpu is not None
            ]
        return {**owned("vpa"), "status": {"recommendation": {"containerRecommendations": rows}}}


def container(size: int) -> Json:
    return {"name": NAME, "resources": {"requests": {"cpu": f"{size}m"}}}


def owned(uid: str) -> Json:
    """The metadata of an object that belongs to the group."""
    owner = {"apiVersion": "autoscaling.k8s.io/v1alpha1", "kind": "Hvpa", "name": "shop", "uid": "hvpa"}
    return {
        "metadata": {
            "name": "shop",
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "1",
            "ownerReferences": [{**owner, "controller": True}],
        }
    }


def world(lags: Lags, replicas: int, size: int, **spec: Any) -> LaggingWorld:
    """A group of this many replicas of this many thousandths of a vCPU, all of them ready."""
    return LaggingWorld(lags, hvpa(lags, **spec), LaggingGroup(lags, replicas, size))
