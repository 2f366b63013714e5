"""Resources other than CPU and memory that pods request and nodes offer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler_plugin.cluster.pods.reading import decode_watched_pod, read_pod
from scheduler_plugin.cluster.translate import read_node
from scheduler_plugin.constraints.model import PLAIN_POD
from tests.scheduler_plugin.objects import Obj, node, plain_pod

DEVICE, PAGES = "autoscaling.neon.tech/guest-devices", "hugepages-2Mi"


def container(restarts: str | None = None, **requests: Any) -> Obj:
    named = {{"device": DEVICE, "pages": PAGES}.get(name, name): amount for name, amount in requests.items()}
    made: Obj = {"name": "c", "resources": {"requests": named}}
    return made if restarts is None else made | {"restartPolicy": restarts}


def asked(*containers: Obj, inits: tuple[Obj, ...] = ()) -> tuple[tuple[str, int], ...]:
    """The pod's requests for them, read from an object and from a watch line."""
    pod = plain_pod("a", "1", "1Gi")
    pod["spec"] |= {"containers": list(containers), "initContainers": list(inits)}
    found = decode_watched_pod(json.dumps({"type": "ADDED", "object": pod}).encode())
    assert found is not None
    assert found.fact == read_pod(pod)
    return found.fact.traits.other_requests


@pytest.mark.parametrize(
    ("containers", "inits", "asks"),
    [
        ([container(cpu="1", memory="1Gi")], (), ()),
        ([container(cpu="1", device="1")], (), ((DEVICE, 1),)),
        ([container(device=1), container(device=2, pages="4Mi")], (), ((DEVICE, 3), (PAGES, 4 * 1024**2))),
        ([container(device=1)], (container(device=2),), ((DEVICE, 2),)),
        ([container(device=1)], (container("Always", device=1),), ((DEVICE, 2),)),
        ([container()], (container("Always", device=1), container(device=2)), ((DEVICE, 3),)),
        ([container(device=0)], (), ()),
        ([container(device="many", pages=8)], (), ((PAGES, 8),)),
    ],
    ids=[
        "none",
        "a device",
        "all containers together",
        "while it starts it needs more",
        "a sidecar runs beside them",
        "a sidecar runs beside what starts",
        "nothing of it",
        "what cannot be read is left out",
    ],
)
def test_a_pod_asks_for_what_kube_scheduler_counts(
    containers: list[Obj], inits: tuple[Obj, ...], asks: tuple[tuple[str, int], ...]
) -> None:
    assert asked(*containers, inits=inits) == asks


def test_empty_requests_share_one_value() -> None:
    assert read_pod(plain_pod("a", "1", "1Gi")).traits is PLAIN_POD


def test_a_node_has_what_it_says_is_allocatable() -> None:
    obj = node("n1", "8", "32Gi")
    obj["status"]["allocatable"] |= {DEVICE: "110", "pods": "250", "ephemeral-storage": "1k", "odd": "?"}
    assert read_node(obj).traits.other_allocatable == {DEVICE: 110, "pods": 250, "ephemeral-storage": 1000}
