"""Reading any object of the cluster quickly returns a fact or raises ``ValueError``."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.kubernetes.objects import JsonObject
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.cluster.migrations import read_migration
from scheduler_plugin.cluster.pods.reading import decode_pod, pod_at_most, read_pod
from scheduler_plugin.cluster.translate import decode_node, read_node
from scheduler_plugin.cluster.virtual_machines import vm_at_most
from tests.examples import examples
from tests.scheduler_plugin.objects import node, plain_pod, vm

Obj = dict[str, Any]

TEXTS = ["1e1000000000000000000", "1e-99999999", "9" * 5000, "-1", "1Zi", "NaN", "inf", "", " 1", "1m1", "٣"]
QUANTITIES = [*TEXTS, 10**40]
WRONG: list[Any] = [None, True, -1, 2**70, 1.5, "x" * 300, [], {}, [[]], [None], {"a": {"b": []}}, *QUANTITIES]


def migration() -> Obj:
    return {
        "metadata": {
            "namespace": "a",
            "name": "m",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {},
            "annotations": {},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"vmName": "v"},
        "status": {
            "phase": "Running",
            "sourcePodName": "s",
            "targetPodName": "t",
            "sourceNode": "n1",
            "targetNode": "n2",
            "conditions": [{"type": "Migrating", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "info": {"totalTimeMs": 7, "downtimeMs": 1, "ram": {"dirtyPagesRate": 1, "pageSize": 4096}},
        },
    }


def full_vm() -> Obj:
    found = vm("v")
    found["metadata"]["annotations"] = {"autoscaling.neon.tech/bounds": "{}", "autoscaling.neon.tech/permit": "{}"}
    found["metadata"]["resourceVersion"] = "7"
    found["status"] |= {"cpus": 1, "memorySize": "4Gi", "podIP": "10.0.0.1", "node": "n1"}
    return found


def full_pod() -> Obj:
    found = plain_pod("p", node="n1")
    found["metadata"] |= {"labels": {"vm.neon.tech/name": "v"}, "ownerReferences": [{"kind": "Pod", "name": "o"}]}
    found["spec"] |= {
        "initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
        "overhead": {"cpu": "1"},
        "resources": {"requests": {"memory": "1Gi"}},
    }
    return found


def full_node() -> Obj:
    found = node("n")
    found["metadata"]["labels"] = {"node.kubernetes.io/instance-type": "big"}
    found["status"]["allocatable"]["nvidia.com/gpu"] = 1
    found["status"]["capacity"] = {"cpu": 1}
    return found


Reader = Callable[[JsonObject], object]
READERS: list[tuple[Reader, Callable[[], Obj]]] = [
    (parse_virtual_machine, full_vm),
    (read_pod, full_pod),
    (read_node, full_node),
    (read_migration, migration),
    (lambda obj: decode_pod(json.dumps(obj).encode()), full_pod),
    (lambda obj: decode_node(json.dumps(obj).encode()), full_node),
]


def paths(obj: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field and element."""
    if path:
        yield path
    inside = obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ()
    for key, value in inside:
        yield from paths(value, (*path, key))


def changed(obj: Obj, path: tuple[Any, ...], value: object) -> Obj:
    found = copy.deepcopy(obj)
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return found


def is_read_or_refused(read: Reader, obj: Obj) -> None:
    try:
        read(obj)
    except ValueError as refusal:
        said = str(refusal)
    else:
        return
    assert 0 < len(said) < 1000, said


@pytest.mark.parametrize(("read", "make"), READERS)
def test_wrong_values_are_read_or_refused(read: Reader, make: Callable[[], Obj]) -> None:
    good = make()
    read(good)
    for path in paths(good):
        for value in WRONG:
            is_read_or_refused(read, changed(good, path, value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(QUANTITIES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(("read", "make"), READERS)
def test_any_json_is_read_or_refused(read: Reader, make: Callable[[], Obj]) -> None:
    good = make()
    places = [path for path in paths(good) if len(path) > 1]

    @settings(max_examples=examples(40, 150), deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(places), JSON, st.sampled_from(places), JSON)
    def check(first: tuple[Any, ...], one: object, second: tuple[Any, ...], two: object) -> None:
        found = changed(good, first, one)
        try:
            found = changed(found, second, two)
        except (KeyError, TypeError, IndexError):
            return  # the first change took the place of the second away
        is_read_or_refused(read, found)

    check()


@pytest.mark.parametrize(("at_most", "make"), [(vm_at_most, full_vm), (pod_at_most, full_pod)])
def test_unreadable_object_always_has_bound(at_most: Callable[[JsonObject, str], Any], make: Callable[[], Obj]) -> None:
    good = make()
    for path in paths(good):
        for value in WRONG:
            assert at_most(changed(good, path, value), "some reason").unreadable == "some reason"
    assert at_most({}, "some reason").unreadable == "some reason"


def deep(levels: int) -> Obj:
    found: Any = 1
    for _ in range(levels):
        found = {"a": found}
    return {"a": found}


@pytest.mark.parametrize(("read", "make"), READERS[:4])
def test_nesting_is_read_or_refused(read: Reader, make: Callable[[], Obj]) -> None:
    good = make()
    for path in paths(good):
        for levels in (300, 900):
            is_read_or_refused(read, changed(good, path, deep(levels)))


LARGE: Mapping[str, tuple[Reader, Callable[[int], Obj]]] = {
    "containers": (
        read_pod,
        lambda size: changed(full_pod(), ("spec", "containers"), full_pod()["spec"]["containers"] * size),
    ),
    "resources": (
        read_node,
        lambda size: changed(full_node(), ("status", "allocatable"), {f"{i}/gpu": "1" for i in range(size)}),
    ),
    "annotations": (
        parse_virtual_machine,
        lambda size: changed(full_vm(), ("metadata", "annotations"), {str(i): "x" * 20 for i in range(size)}),
    ),
}


@pytest.mark.parametrize("kind", sorted(LARGE))
def test_object_decoding_is_linear(kind: str) -> None:
    """About 1.5 MB each. Half of it costs half; noise only ever adds, so that the least of three is compared."""
    read, make = LARGE[kind]

    def work(size: int) -> float:
        obj, times = make(size), []
        for _ in range(3):
            began = time.process_time()
            is_read_or_refused(read, obj)
            times.append(time.process_time() - began)
        return min(times)

    assert work(20_000) <= 4 * work(10_000) + 0.002
