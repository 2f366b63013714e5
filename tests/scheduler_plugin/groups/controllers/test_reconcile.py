"""The reconcile result of a group where something is wrong, or was left behind by another version of the program."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from protocol.kubernetes.objects import Json, JsonObject, items, text
from protocol.kubernetes.resources import HVPAS, Resource
from scheduler_plugin.groups.controllers import policies
from scheduler_plugin.groups.controllers.group_controller import refused, stopped
from scheduler_plugin.groups.controllers.policies import DesiredState, GroupFacts, HvpaPolicy, PolicyDecision
from scheduler_plugin.groups.controllers.reconcile import WRITABLE, ReconcileResult, reconcile
from scheduler_plugin.groups.controllers.tortoise_policy import TortoisePolicy
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.workload import Workload
from scheduler_plugin.groups.objects.targets import InvalidSpecError, TargetRef
from scheduler_plugin.groups.objects.vm_group import stopped_because

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WEB = TargetRef("apps", "Deployment", "web")


def deployment(cpu: str = "1", **metadata: str) -> Json:
    container = {"name": "app", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"namespace": "default", "name": "web", **metadata},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [container]}}},
    }


def hvpa(uid: str = "u-1", generation: int = 1, **spec: object) -> Json:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    metadata = {"namespace": "default", "name": "group", "uid": uid, "generation": generation}
    return {"metadata": metadata, "spec": {"vpaTemplate": {}, "targetRef": target, **spec}}


class Refusing:
    """A policy that raises only when it decides."""

    kind: Resource = HVPAS

    def desired(self, group: JsonObject) -> DesiredState:
        return DesiredState(WEB)

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        raise InvalidSpecError("spec.mode: expected another")


def reason(found: ReconcileResult) -> str:
    assert found.problem is not None
    assert (found.companion_writes, found.intent, found.scale_reset) == ((), None, None)
    (able,) = (each for each in items(found.status, "conditions") if text(each, "type") == "AbleToScale")
    assert (text(able, "status"), text(able, "message")) == ("False", found.problem.message)
    return found.problem.reason


def test_leaving_or_unreadable_target_is_skipped() -> None:
    policy, desired = Refusing(), DesiredState(WEB)
    leaving = deployment(deletionTimestamp="2026-01-01T00:00:00Z")
    assert reason(reconcile(policy, GroupFacts(hvpa(), desired, target=leaving), NOW)) == "TargetLeaving"
    assert reason(reconcile(policy, GroupFacts(hvpa(), desired, target=deployment("much")), NOW)) == "TargetUnreadable"
    assert reason(reconcile(policy, GroupFacts(hvpa(), desired, target=deployment()), NOW)) == "InvalidSpec"


def test_intent_ends_if_scaling_is_off() -> None:
    status: Json = {"intent": {"at": "2026-01-01T00:00:00Z", "replicas": {"from": 1, "to": 2}}, "mode": "Mixed"}
    found = reconcile(Refusing(), GroupFacts({**hvpa(), "status": status}, DesiredState(WEB)), NOW)
    assert ("intent" in found.status, found.status["mode"]) == (False, "Mixed")


def test_sizes_that_cannot_be_read_never_were() -> None:
    policy = HvpaPolicy()
    sizes = [{"name": "app", "resources": {"requests": {"cpu": "much"}}}]
    group = {**hvpa(updateMode="inPlace"), "status": {"sizes": {"inPlace": sizes, "template": sizes}}}
    found = reconcile(policy, GroupFacts(group, policy.desired(group), target=deployment()), NOW)
    assert (found.sizes, "sizes" in found.status) == ((), False)


def test_unreadable_pod_stops_group() -> None:
    pod: Json = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "much"}}}]}}
    target = {**deployment(), "status": {"observedGeneration": 1}}
    found = reconcile(HvpaPolicy(), GroupFacts(hvpa(), HvpaPolicy().desired(hvpa()), target=target, pods=(pod,)), NOW)
    assert reason(found) == "TargetUnreadable"


def recommending(cpu: str) -> Json:
    """The group's VPA, with this recommendation for the container."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    row = {"containerName": "app", "target": {"cpu": cpu}}
    owner = {"apiVersion": "autoscaling.k8s.io/v1alpha1", "kind": "Hvpa", "uid": "u-1", "controller": True}
    return {
        "metadata": {"name": "group", "namespace": "default", "ownerReferences": [owner]},
        "spec": {"targetRef": target, "updatePolicy": {"updateMode": "Off"}},
        "status": {"recommendation": {"containerRecommendations": [row]}},
    }


def test_sizes_in_place_rest_after_each_change() -> None:
    """As after a scaling: no recommendation can reflect it yet."""
    policy, group, pause = HvpaPolicy(), hvpa(updateMode="inPlace"), timedelta(seconds=15)
    facts = GroupFacts(group, policy.desired(group), target=deployment(), vpa=recommending("2"), pause=pause)
    first = reconcile(policy, facts, NOW)
    resized = replace(facts, group={**group, "status": first.status}, vpa=recommending("4"))
    assert reconcile(policy, resized, NOW + timedelta(seconds=14)).sizes == first.sizes
    assert reconcile(policy, resized, NOW + timedelta(seconds=15)).sizes != first.sizes


def test_the_same_facts_give_the_same_result() -> None:
    policy, group = HvpaPolicy(), hvpa()
    facts = GroupFacts(group, policy.desired(group), target=deployment())
    assert reconcile(policy, facts, NOW) == reconcile(HvpaPolicy(), facts, NOW)


def test_decoding_is_cached_per_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "REMEMBERED", 1)
    policy = HvpaPolicy()
    first = policy.desired(hvpa())
    assert policy.desired(hvpa(scaleUpDelay="soon")) == first
    with pytest.raises(InvalidSpecError, match="scaleUpDelay"):
        policy.desired(hvpa(generation=2, scaleUpDelay="soon"))
    policy.desired(hvpa("u-2"))
    with pytest.raises(InvalidSpecError, match="scaleUpDelay"):
        policy.desired(hvpa(scaleUpDelay="soon"))


def test_unscalable_target_is_refused() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "x"}
    tortoise = {"metadata": {"namespace": "a", "name": "b"}, "spec": {"targetRefs": {"scaleTargetRef": pod}}}
    with pytest.raises(InvalidSpecError, match="expected one of apps/v1 Deployment"):
        HvpaPolicy().desired(hvpa(targetRef=pod))
    with pytest.raises(InvalidSpecError, match="expected one of apps/v1 Deployment"):
        TortoisePolicy(Configuration).desired(tortoise)
    with pytest.raises(InvalidSpecError):
        TortoisePolicy(Configuration).desired({"spec": 7})


def test_unreadable_vpa_is_silent() -> None:
    row = {"containerName": "app", "target": {"cpu": "a lot"}}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    vpa: Json = {"spec": {"targetRef": target}, "status": {"recommendation": {"containerRecommendations": [row]}}}
    tortoise: Json = {"metadata": {"namespace": "a", "name": "b"}, "spec": {"targetRefs": {"scaleTargetRef": target}}}
    policy = TortoisePolicy(Configuration)
    facts = GroupFacts(tortoise, policy.desired(tortoise), target=deployment(), vpa=vpa)
    found = reconcile(policy, facts, NOW)
    (active,) = (each for each in items(found.status, "conditions") if text(each, "type") == "ScalingActive")
    assert (text(active, "status"), "target.cpu" in text(active, "message")) == ("False", True)


def test_notices_are_created_once() -> None:
    group = hvpa()
    found = reconcile(Refusing(), GroupFacts(group, None, "spec: expected more"), NOW)
    assert found.problem is not None
    event = stopped(HVPAS, group, found.problem)
    assert event is not None
    assert (event.reason, event.note) == ("InvalidSpec", "spec: expected more")
    said = {**group, "status": found.status}
    again = reconcile(Refusing(), GroupFacts(said, None, "spec: expected more"), NOW)
    assert again.problem is not None
    assert stopped(HVPAS, said, again.problem) is None
    assert (stopped_because(said), stopped_because(group)) == ("InvalidSpec", "")
    (condition,) = items(refused(group, WRITABLE, "forbidden", 0.0), "conditions")
    assert (condition["type"], condition["message"]) == ("TargetWritable", "forbidden")


def test_kinds_of_both_policies() -> None:
    assert (HvpaPolicy().kind.kind, TortoisePolicy(Configuration).kind.kind) == ("Hvpa", "Tortoise")


def test_foreign_reason_is_no_label_of_its_own() -> None:
    """Users who may write a group's status could otherwise fill the metrics with series."""
    condition = {"type": "AbleToScale", "status": "False", "reason": "x" * 1000}
    assert stopped_because({"status": {"conditions": [condition]}}) == "Other"
