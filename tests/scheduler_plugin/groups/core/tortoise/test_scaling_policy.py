"""The scaling of each resource, and the HPA's metrics for it."""

from __future__ import annotations

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.tortoise.autoscaler import (
    Autoscaler,
    ContainerTarget,
    OtherMetric,
    ResourceTarget,
    Scaling,
    effective,
    horizontal,
)
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer

BOTH = ResourceList(MilliCpu(1000), Bytes(2**30))
APP, PROXY, BARE = SizedContainer("app", BOTH), SizedContainer("proxy", BOTH), SizedContainer("bare")
QUEUE = OtherMetric({"type": "External", "external": {"metric": {"name": "queue"}}})
OFF, ACROSS, UP = Scaling.OFF, Scaling.HORIZONTAL, Scaling.VERTICAL


def hpa(*metrics: ContainerTarget | ResourceTarget | OtherMetric) -> Autoscaler:
    return Autoscaler(1, 9, metrics)


def test_default_policy_cpu_horizontal_memory_vertical() -> None:
    assert effective(None, [APP], None) == {("app", "cpu"): ACROSS, ("app", "memory"): UP}


def test_what_an_attached_hpa_scales_is_horizontal() -> None:
    attached = hpa(QUEUE, ContainerTarget("app", "memory", 70))
    found = effective(None, [APP, PROXY], attached)
    assert horizontal(found) == (("app", "memory"),)
    assert [found[place] for place in found if place != ("app", "memory")] == [UP] * 3


def test_a_resource_metric_is_of_all_containers() -> None:
    assert horizontal(effective(None, [APP, PROXY], hpa(ResourceTarget("cpu")))) == (("app", "cpu"), ("proxy", "cpu"))


def test_what_a_policy_leaves_out_is_off() -> None:
    found = effective({("app", "cpu"): UP}, [APP, PROXY], hpa(ContainerTarget("proxy", "cpu", 70)))
    assert [place for place, policy in found.items() if policy is not OFF] == [("app", "cpu")]


def test_a_container_without_requests_is_not_scaled() -> None:
    assert set(effective(None, [BARE], None).values()) == {OFF}
    assert set(effective({("bare", "cpu"): ACROSS}, [BARE], None).values()) == {OFF}


def test_managed_resources_have_one_metric_each() -> None:
    """A ``Resource`` metric is replaced; metrics of unmanaged sidecars stay as they are."""
    sidecar, memory = ContainerTarget("istio-proxy", "cpu", 80), ContainerTarget("app", "memory", 75)
    before = hpa(
        ResourceTarget("cpu", 60),
        ContainerTarget("app", "cpu", 65),
        QUEUE,
        ContainerTarget("app", "cpu", 50),
        sidecar,
        memory,
    )
    after = before.managing([("app", "cpu"), ("proxy", "cpu")])
    assert after.metrics == (
        ContainerTarget("app", "cpu", 65),
        QUEUE,
        sidecar,
        memory,
        ContainerTarget("proxy", "cpu", 60),
    )
    assert after.managing([("app", "cpu"), ("proxy", "cpu")]) == after


def test_what_is_sized_instead_has_no_metric() -> None:
    """A metric on a resource that is sized vertically would work against the sizes."""
    before = hpa(ContainerTarget("app", "memory", 75), ResourceTarget("memory", 60), QUEUE)
    assert before.managing([], [("app", "memory")]).metrics == (QUEUE,)
    assert before.managing([], [("app", "cpu")]) == before


def test_a_target_that_is_an_amount_stays() -> None:
    """An ``averageValue`` of 700m is not 70 %: neither metric is changed, and no metric is added."""
    of_all = ResourceTarget("cpu", None, {"averageValue": "700m"})
    own = ContainerTarget("app", "memory", None, {"averageValue": "1Gi"})
    before = hpa(of_all, own)
    assert before.managing([("app", "cpu"), ("proxy", "cpu"), ("app", "memory")]) == before


def test_new_metrics_begin_with_the_replaced_target() -> None:
    before = hpa(ResourceTarget("cpu", 60))
    after = before.managing([("app", "cpu"), ("proxy", "cpu"), ("app", "memory")])
    assert after.metrics == (
        ContainerTarget("app", "cpu", 60),
        ContainerTarget("proxy", "cpu", 60),
        ContainerTarget("app", "memory", 70),
    )


def test_a_target_is_of_one_container_and_resource() -> None:
    found = hpa(QUEUE, ContainerTarget("app", "cpu", 60), ContainerTarget("app", "memory", 70))
    changed = found.with_target("app", "memory", 75)
    assert [changed.target("app", "cpu"), changed.target("app", "memory"), changed.target("b", "cpu")] == [60, 75, None]
