"""Pods from their text are the pods that are read of the same object; what is not read so is left to others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches.kinds import Watched
from scheduler_plugin.cluster.pods.reading import PodHeader, decode_watched_pod, pod_header, read_pod
from tests.scheduler_plugin.cluster.test_hostile_objects import WRONG, changed, full_pod, paths
from tests.scheduler_plugin.objects import Obj, plain_pod, vm_pod


def line(pod: Obj, kind: str = "MODIFIED") -> bytes:
    return json.dumps({"type": kind, "object": pod}).encode()


SPREAD = {"topologyKey": "z", "maxSkew": 1}


def placed_pod() -> Obj:
    """A pod with everything that other pods' constraints see of it."""
    found = full_pod()
    found["metadata"] |= {"resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{}]}
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}
    found["spec"] |= {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "other", "emptyDir": {}}],
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}, {"key": "gpu", "value": "a"}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
    }
    found["spec"]["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": 2, "hostIP": "10.0.0.1"}]
    return found


@pytest.mark.parametrize("make", [full_pod, placed_pod, lambda: plain_pod("p"), lambda: vm_pod("v", "n1")])
def test_typed_pod_matches_generic_one(make: Any) -> None:
    pod = make()
    pod["metadata"]["resourceVersion"] = "7"
    facts = read_pod(pod)
    assert decode_watched_pod(line(pod)) == Watched(facts.name, facts.uid, "7", facts)


def test_bad_pod_decodes_same_or_falls_back() -> None:
    good, same = placed_pod(), 0
    for path in paths(good):
        for value in WRONG:
            pod = changed(good, path, value)
            found = decode_watched_pod(line(pod))
            if found is not None:
                assert found.fact == read_pod(pod), (path, value)
                same += 1
    assert same > 400


@pytest.mark.parametrize(
    "said",
    [
        line(plain_pod("p"), "DELETED"),
        b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"9"},"spec":{}}}',
        b'{"type":"ERROR","object":{"code":410}}',
        b"{",
        b"[" * 5000,
    ],
)
def test_any_other_line_is_left_to_others(said: bytes) -> None:
    assert decode_watched_pod(said) is None


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, False),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}}}, False),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, False),
        ({"topologySpreadConstraints": [SPREAD]}, False),
        (
            {"topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]},
            True,
        ),
    ],
)
def test_who_is_asked_about(more: Obj, expected: bool) -> None:
    pod = plain_pod("p")
    pod["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    pod["spec"] |= more
    assert pod_header(json.dumps(pod).encode()) == PodHeader(ObjectName("default", "p"), "u", "7", expected)


@pytest.mark.parametrize(
    "said", [b"{}", b"[", b'{"metadata":{"name":"p","namespace":"n","uid":"u"},"spec":{}}', b"[" * 5000]
)
def test_who_cannot_be_told_is_not_guessed(said: bytes) -> None:
    assert pod_header(said) is None
