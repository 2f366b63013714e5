"""Requests too large for Kubernetes' own integers, which kube-scheduler and kubelets count as nothing: such pods run.

``resource.Quantity`` of apimachinery 0.36: ``MilliValue`` of 1E is 0, of 7Ei negative; ``Value`` of twice 8E is 0, of
twice 7Ei negative.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.names import RUNNER_CONTAINER
from protocol.units import ZERO, Resources
from scheduler_plugin.cluster.pods.reading import decode_pod, pod_at_most, read_pod
from scheduler_plugin.cluster.pods.shapes import MAX_PARTS
from tests.scheduler_plugin.objects import owner_of, plain_pod


def requesting(*requests: dict[str, str], name: str = "a") -> dict[str, Any]:
    pod = plain_pod("p", node="n1")
    pod["spec"]["containers"] = [{"name": name, "resources": {"requests": each}} for each in requests]
    return pod


HUGE = ["1E", "7Ei", "10P", "1e100", "1e2147483647", "9223372036854775807", "1" + "0" * 300]


@pytest.mark.parametrize("amount", HUGE)
def test_overflowing_cpu_counts_as_nothing(amount: str) -> None:
    """Otherwise one such pod would close its node: nothing would be free for the VMs there."""
    pod = requesting({"cpu": amount, "memory": "1Gi"})
    assert read_pod(pod).requests == decode_pod(json.dumps(pod).encode()).requests == Resources.parse(0, "1Gi")
    assert read_pod(pod).is_bounded


@pytest.mark.parametrize("amount", ["1e30", "10000000000000000000", "1" + "0" * 300])
def test_overflowing_memory_counts_as_nothing(amount: str) -> None:
    assert read_pod(requesting({"cpu": "1", "memory": amount})).requests == Resources.parse(1, 0)


def test_overflowing_sums_count_as_nothing() -> None:
    pod = requesting({"cpu": "9P", "memory": "8E"}, {"cpu": "9P", "memory": "8E"})
    assert read_pod(pod).requests == ZERO
    assert read_pod(requesting({"cpu": "9P"}, {"memory": "8E"})).requests == Resources.parse("9P", "8E")


def test_overflowing_pod_of_vm_has_no_overhead() -> None:
    pod = requesting({"cpu": "1"}, name=RUNNER_CONTAINER)
    pod["spec"]["containers"] += requesting(*[{"cpu": "9P", "memory": "8E"}] * 2)["spec"]["containers"]
    pod["metadata"]["ownerReferences"] = [owner_of("db", "vm-1")]
    facts = read_pod(pod)
    assert (facts.requests, facts.overhead) == (ZERO, ZERO)


def test_large_pods_may_overflow_too() -> None:
    requests = [{"cpu": "1E", "memory": "8E"}] * (MAX_PARTS + 1)
    facts = pod_at_most(requesting(*requests), "too many containers")
    assert (facts.requests, facts.is_bounded) == (ZERO, True)


def test_malformed_amounts_are_still_refused() -> None:
    for amount in ("-1", "much"):
        with pytest.raises(ValueError, match=r"requests\.cpu"):
            read_pod(requesting({"cpu": amount}))
