"""An agent may resize a postgres pod up to the maximum of its owner, in any notation."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.apiserver.patch.merge import merge_patch
from protocol.pod_database import parse_pod_database, resize_body
from protocol.units import Resources
from tests.deploy.manifests import documents
from tests.deploy.policies.admission import Write, refusal
from tests.kubernetes.attacks.attempt import resources
from tests.kubernetes.attacks.world import BOUNDS, NODE_AGENT, Obj, pod, postgres, runner, vm

POLICIES = [
    policy
    for policy in documents("deploy/kubernetes/chart/autoscale/policies/agents.yaml")
    if policy["kind"] == "ValidatingAdmissionPolicy"
]
BEYOND = "autoscaling-agents-pods: the size exceeds the maximum in the pod's annotation bounds"
OTHER_FIELD = "autoscaling-agents-pods: agents may change only CPU and memory of the postgres container"
AWAY = "autoscaling-agents-pods: the CPU limit must keep its distance from the request"
NOT_OPTED_IN = "autoscaling-agents-pods: the pod is not enabled for autoscaling"


def refused(before: Obj, after: Obj) -> str:
    """The reason why the agent of node a may not make that change; empty if it may."""
    write = Write(NODE_AGENT.username, "UPDATE", "", "pods", "default", "resize", after, before, NODE_AGENT.extra)
    return refusal(POLICIES, write)


def resized(before: Obj, size: Resources) -> Obj:
    """The pod after the agent's own patch."""
    (changed,) = resize_body(parse_pod_database(before), size)["spec"]["containers"]  # type: ignore[index]
    after: Obj = merge_patch(before, resources(before, changed["name"], **changed["resources"]))
    return after


def growth(bounds: str | None) -> str:
    """The reason why a pod with these bounds may not grow to 2 CPU and 4 GiB."""
    before = postgres("pg-1", bounds=BOUNDS)
    after = resized(before, Resources.parse(2, "4Gi"))
    for each in (before, after):
        each["metadata"]["annotations"] = {} if bounds is None else {"autoscaling.neon.tech/bounds": bounds}
    return refused(before, after)


@pytest.mark.parametrize(
    "bounds",
    [
        '{"max":{"cpu":2,"mem":"4Gi"}}',
        '{"max": {"mem": "4Gi", "cpu": "2"}}',
        '{"max":{"cpu":"2000m","mem":4294967296}}',
        '{"max":{"cpu":2.5,"mem":4.3e9}}',
        '{\n\t"max" : {\r\n "cpu" : 2 , "mem" : "4096Mi" }\n}\n',
        '{"min":{"cpu":1,"mem":"1Gi"},"max":{"cpu":2,"mem":"4Gi"}}',
        '{"max":{"cpu":2,"mem":"4Gi"},"min":{"mem":1,"cpu":"1"}}',
    ],
)
def test_bounds_in_any_form_allow_their_maximum(bounds: str) -> None:
    assert growth(bounds) == ""


@pytest.mark.parametrize(
    "bounds",
    [
        None,
        "",
        "{}",
        '{"max":{}}',
        '{"max":{"cpu":2}}',
        '{"max":{"mem":"4Gi"}}',
        '{"max":{"cpu":1.9,"mem":"8Gi"}}',
        '{"max":{"cpu":8,"mem":"4095Mi"}}',
        '{"max":{"cpu":"1999m","mem":"4Gi"}}',
        '{"min":{"cpu":8,"mem":"8Gi"},"max":{"cpu":1,"mem":"1Gi"}}',
        '{"min":{"cpu":8,"mem":"8Gi"}}',
        # Forms that no agent reads.
        '{"max":{"cpu":2,"cpu":2,"mem":"4Gi"}}',
        '{"max":{"cpu":8,"mem":"8Gi"},"max":{"cpu":1,"mem":"1Gi"}}',
        '{"of":{"max":{"cpu":8,"mem":"8Gi"}}}',
        '{"max":{"cpu":[8],"mem":"8Gi"}}',
        '{"max":{"cpu":"\\u0038","mem":"8Gi"}}',
        '{"max":{"cpu":"","mem":"8Gi"}}',
        '{"max":{"cpu":"8","mem":"many"}}',
        '{"max":{"cpu":"8,"mem":"8Gi"}}',
        'max":{"cpu":8,"mem":"8Gi"}',
        '[{"max":{"cpu":8,"mem":"8Gi"}}]',
    ],
)
def test_growth_beyond_or_without_bounds_is_refused(bounds: str | None) -> None:
    assert growth(bounds) == BEYOND


def test_a_pod_without_readable_bounds_may_shrink() -> None:
    """Its agent withdraws what the kubelet cannot give."""
    before = postgres("pg-1")
    after = resized(before, Resources.parse("500m", "1Gi"))
    for each in (before, after):
        each["metadata"]["annotations"] = {"autoscaling.neon.tech/bounds": "none"}
    assert refused(before, after) == ""


BELOW = "autoscaling-agents-pods: the size is below the pod's minimum"


@pytest.mark.parametrize(
    ("bounds", "first", "why"),
    [
        ('{"max":{"cpu":4,"mem":"8Gi"},"min":{"mem":"1Gi","cpu":"500m"}}', None, ""),
        ('{"max":{"cpu":4,"mem":"8Gi"},"min":{"cpu":0.5,"mem":"1025Mi"}}', None, BELOW),
        ('{"max":{"cpu":4,"mem":"8Gi"},"min":{"cpu":"501m","mem":"1Gi"}}', '{"cpu":"100m","mem":"1Gi"}', BELOW),
        ('{"max":{"cpu":4,"mem":"8Gi"},"min":{"cpu":"100m","mem":"1Gi"}}', '{"cpu":"1","mem":"2Gi"}', ""),
        ('{"max":{"cpu":4,"mem":"8Gi"}}', '{"cpu": "500m", "mem": "1Gi"}', ""),
        ('{"max":{"cpu":4,"mem":"8Gi"}}', '{"cpu":"501m","mem":"1Gi"}', BELOW),
        ('{"max":{"cpu":4,"mem":"8Gi"}}', "?", ""),
        ("none", '{"cpu":"500m","mem":"2Gi"}', BELOW),
    ],
)
def test_agent_shrinks_to_the_minimum_and_never_below(bounds: str, first: str | None, why: str) -> None:
    """The pod goes from 1 CPU and 2 GiB to half of that."""
    before = postgres("pg-1")
    after = resized(before, Resources.parse("500m", "1Gi"))
    for each in (before, after):
        each["metadata"]["annotations"] = {"autoscaling.neon.tech/bounds": bounds} | (
            {} if first is None else {"autoscaling.neon.tech/first-requests": first}
        )
    assert refused(before, after) == why


def test_agent_reverts_ungranted_resize_below_minimum() -> None:
    """A minimum above the template is a resize like any other."""
    before = postgres("pg-1", bounds='{"min":{"cpu":"1","mem":"2Gi"},"max":{"cpu":4,"mem":"8Gi"}}')
    before["status"]["containerStatuses"] = [
        {"name": "postgres", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    ]
    sizes = ("500m", "1Gi"), ("400m", "1Gi"), ("500m", "1023Mi")
    assert [refused(before, resized(before, Resources.parse(*size))) for size in sizes] == ["", BELOW, BELOW]


SIZES = st.tuples(st.integers(min_value=1, max_value=9_000), st.integers(min_value=1, max_value=18_000))


@given(SIZES, SIZES, st.booleans(), st.booleans())
def test_agent_resizes_within_bounds_and_never_beyond(
    maxima: tuple[int, int], size: tuple[int, int], has_limit: bool, is_text: bool
) -> None:
    """The pod requests 1 CPU and 2 GiB; the agent's patch to another size is refused only beyond the maximum."""
    (most, most_mem), (cpu, mem) = maxima, size
    maximum = {"cpu": f"{most}m" if is_text else most / 1000, "mem": f"{most_mem}Mi" if is_text else most_mem * 2**20}
    before = postgres("pg-1")
    if not has_limit:
        del before["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    after = resized(before, Resources.parse(f"{cpu}m", f"{mem}Mi"))
    for each in (before, after):
        each["metadata"]["annotations"]["autoscaling.neon.tech/bounds"] = json.dumps({"max": maximum})
    assert refused(before, after) == (BEYOND if 1000 < cpu > most or 2048 < mem > most_mem else "")


def sized(**amounts: Any) -> Obj:
    """The pod with these requests and limits of postgres."""
    before = postgres("pg-1")
    after: Obj = merge_patch(before, resources(before, "postgres", **amounts))
    return after


REQUESTS = {"cpu": "1", "memory": "2Gi"}
LIMITS = {"cpu": "1500m", "memory": "2Gi"}


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (sized(limits={"cpu": "1501m", "memory": "2Gi"}), AWAY),
        (sized(limits={"cpu": "1499m", "memory": "2Gi"}), AWAY),
        (sized(requests={"cpu": "1100m", "memory": "2Gi"}), AWAY),
        (sized(requests={"cpu": "900m", "memory": "2Gi"}), AWAY),
        (sized(limits={"memory": "2Gi"}), AWAY),
        (sized(limits={"cpu": "1500m", "memory": "8193Mi"}), BEYOND),
        (sized(limits={"cpu": "1500m"}), BEYOND),
        (sized(requests={"cpu": "1"}), BEYOND),
        (sized(requests={**REQUESTS, "ephemeral-storage": "1Gi"}), OTHER_FIELD),
        (sized(limits={**LIMITS, "hugepages-2Mi": "1Gi"}), OTHER_FIELD),
        (sized(claims=[{"name": "gpu"}]), OTHER_FIELD),
        (resources(postgres("pg-1"), "proxy", requests={"cpu": "1m", "memory": "1Mi"}), OTHER_FIELD),
        ({"spec": {"containers": postgres("pg-1")["spec"]["containers"][:1]}}, OTHER_FIELD),
        ({"spec": {"containers": [*postgres("pg-1")["spec"]["containers"], {"name": "x"}]}}, OTHER_FIELD),
        ({"spec": {"resources": {"requests": {"cpu": "1"}}}}, OTHER_FIELD),
        ({"metadata": {"labels": {"a": "b"}}}, OTHER_FIELD),
        ({"metadata": {"annotations": {"autoscaling.neon.tech/bounds": "{}"}}}, OTHER_FIELD),
    ],
)
def test_nothing_but_size_of_postgres_changes(after: Obj, why: str) -> None:
    before = postgres("pg-1")
    assert refused(before, merge_patch(before, after)) == why


def test_a_cpu_limit_is_not_added() -> None:
    """It would throttle a postgres whose owner gave it none."""
    before = postgres("pg-1")
    del before["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    assert refused(before, postgres("pg-1")) == AWAY


def test_a_shrink_adds_a_memory_limit() -> None:
    """A growth leaves the pod without one, or with one above its maximum."""
    before, higher = postgres("pg-1"), postgres("pg-1")
    del before["spec"]["containers"][0]["resources"]["limits"]
    higher["spec"]["containers"][0]["resources"]["limits"]["memory"] = "16Gi"
    for pod_before, limits in ((before, {}), (higher, {"cpu": "2500m", "memory": "16Gi"})):
        grown, shrunk = (resized(pod_before, Resources.parse(2, mem)) for mem in ("4Gi", "1Gi"))
        assert grown["spec"]["containers"][0]["resources"]["limits"] == limits
        assert shrunk["spec"]["containers"][0]["resources"]["limits"] == {**limits, "memory": "1Gi"}
        assert (refused(pod_before, grown), refused(pod_before, shrunk)) == ("", "")
    assert refused(before, resized(before, Resources.parse(2, "9Gi"))) == BEYOND


def test_only_the_container_of_postgres_grows() -> None:
    """A pod with several containers has one of that name, or names it; the only container needs no name."""
    alone = pod("pg-1", "node-a", containers=[{**postgres("x")["spec"]["containers"][0], "name": "db"}])
    alone["metadata"] |= {**postgres("pg-1")["metadata"]}
    named = postgres("pg-1")
    named["metadata"]["annotations"]["autoscaling.neon.tech/container"] = "proxy"
    assert refused(alone, resized(alone, Resources.parse(2, "4Gi"))) == ""
    assert refused(named, resized(named, Resources.parse(2, "4Gi"))) == ""
    assert refused(named, {**resized(postgres("pg-1"), Resources.parse(2, "4Gi")), "metadata": named["metadata"]}) == (
        OTHER_FIELD
    )


def test_pods_of_vms_are_no_pods_with_postgres() -> None:
    """Their label or their owner shows it; either is enough."""
    of_vm = runner(vm("mine", "node-a", "mine-1"))
    by_label, by_owner = postgres("pg-1"), postgres("pg-1")
    by_label["metadata"]["labels"]["vm.neon.tech/name"] = "mine"
    by_owner["metadata"]["ownerReferences"] = of_vm["metadata"]["ownerReferences"]
    for before in (of_vm, by_label, by_owner):
        assert refused(before, deepcopy(before)) == NOT_OPTED_IN
