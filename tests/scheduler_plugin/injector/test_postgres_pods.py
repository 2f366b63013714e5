"""A new postgres pod gets annotations with its template's requests and its predecessor's size."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonpatch import apply_patch

from protocol.floors import decode_floor
from protocol.kubernetes.objects import controller_of, name_of, text
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.pod_database import parse_pod_database
from protocol.units import Resources
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.injector.admission.first_size import annotate
from scheduler_plugin.injector.app import InjectorProgram
from scheduler_plugin.injector.predecessors import AT_MOST, Predecessors
from scheduler_plugin.injector.telemetry import InjectorTelemetry
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.injector.injecting import Cluster, installed
from tests.scheduler_plugin.injector.pods import response, review

FIRST = "autoscaling.neon.tech/first-requests"
FLOOR = "autoscaling.neon.tech/floor"
UNTIL = 1767261600.0


def postgres(name: str = "pg-1", cpu: str = "1", memory: str = "2Gi", owner: str = "", **annotations: str) -> Any:
    """A pod that may have up to 4 CPU and 8 GiB, as its creator sends it."""
    own = {"autoscaling.neon.tech/bounds": '{"max": {"cpu": 4, "mem": "8Gi"}}'}
    own |= {f"autoscaling.neon.tech/{key.replace('_', '-')}": text for key, text in annotations.items()}
    owners = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "pg", "uid": owner, "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"autoscaling.neon.tech/enabled": "true"},
            "annotations": own,
            **({"ownerReferences": owners} if owner else {}),
        },
        "spec": {
            "containers": [
                {"name": "proxy", "image": "proxy"},
                {
                    "name": "postgres",
                    "image": "postgres",
                    "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
                },
            ]
        },
    }


def annotated(pod: Any, before: Resources | None) -> Any:
    """The pod as stored."""
    return apply_patch(deepcopy(pod), annotate(pod, before, UNTIL))


def test_template_requests_are_written_down() -> None:
    pod = postgres(cpu="250m", memory="1536Mi")
    made = annotated(pod, None)
    pod["metadata"]["annotations"][FIRST] = '{"cpu":"250m","mem":"1536Mi"}'
    assert made == pod
    assert parse_pod_database(made).bounds.min == Resources.parse("250m", "1536Mi")


def test_annotation_of_the_creator_is_overwritten() -> None:
    """Otherwise a pod's creator could have it shrunk below its template, or make it unreadable."""
    for forged in ('{"cpu":"1m","mem":1}', "nonsense"):
        made = annotated(postgres(first_requests=forged), None)
        assert made["metadata"]["annotations"][FIRST] == '{"cpu":"1","mem":"2Gi"}'


@pytest.mark.parametrize(
    ("before", "floor"),
    [
        (Resources.parse(1, "2Gi"), None),
        (Resources.parse("500m", "1Gi"), None),
        (Resources.parse(3, "4Gi"), Resources.parse(3, "4Gi")),
        (Resources.parse(3, "1Gi"), Resources.parse(3, "2Gi")),
        (Resources.parse(16, "64Gi"), Resources.parse(4, "8Gi")),
    ],
)
def test_pod_replacing_larger_one_gets_floor(before: Resources, floor: Resources | None) -> None:
    """Within the bounds and never below the template, for a time; the pod itself is created at its template's size."""
    pod = postgres()
    made = annotated(pod, before)
    text = made["metadata"]["annotations"].get(FLOOR)
    assert (None if text is None else decode_floor(text).size) == floor
    assert text is None or decode_floor(text).until == UNTIL
    assert made["spec"] == pod["spec"]


AMOUNTS = st.builds(
    lambda cpu, mem: Resources.parse(f"{cpu}m", f"{mem}Mi"), st.integers(1, 20_000), st.integers(1, 50_000)
)


@given(AMOUNTS, AMOUNTS, st.none() | AMOUNTS)
def test_a_second_look_changes_nothing(template: Resources, most: Resources, before: Resources | None) -> None:
    """Bounds hold, whatever was there before; and annotations are the same when the API server asks again."""
    pod = postgres(cpu=template.cpu.quantity(), memory=template.mem.quantity())
    bounds = {"cpu": most.cpu.quantity(), "mem": most.mem.quantity()}
    pod["metadata"]["annotations"]["autoscaling.neon.tech/bounds"] = json.dumps({"max": bounds})
    try:
        made = annotated(pod, before)
    except InvalidObjectError:
        assert not template.within(most)
        return
    assert annotated(made, before) == made
    floor = decode_floor(
        made["metadata"]["annotations"].get(FLOOR, '{"vCPUs":0,"mem":0,"until":"2026-01-01T10:00:00Z"}')
    )
    assert floor.size.within(most)
    assert not floor.size.any or (template.within(floor.size) and floor.size != template)


def test_unreadable_pod_is_refused_with_the_advice() -> None:
    with pytest.raises(InvalidObjectError, match="expected both cpu and memory"):
        annotate(postgres(cpu="0"), None, UNTIL)


def test_controller_is_the_owner_that_controls() -> None:
    pod = postgres(owner="rs-1")
    pod["metadata"]["ownerReferences"].insert(0, {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n-1"})
    assert [text(controller_of(each), "uid") for each in (pod, postgres())] == ["rs-1", ""]


async def asked(program: InjectorProgram, pod: Any) -> str:
    """The new pod's size and its template's, or the warning to its creator."""
    answer = response(await program.injector.answer(review(pod)))
    assert answer["allowed"]
    if "warnings" in answer:
        return str(answer["warnings"][0])
    written = {operation["path"].rpartition("~1")[2]: operation["value"] for operation in answer["patch"]}
    assert json.loads(written.pop("first-requests")) == {"cpu": "1", "mem": "2Gi"}
    return str(decode_floor(written["floor"]).size) if written else ""


async def create(cluster: Cluster, pod: Any) -> None:
    await cluster.api.request("POST", PODS.path("default"), pod)
    await cluster.clock.advance(0)


async def test_recreated_pods_request_their_earlier_size(tmp_path: Path) -> None:
    """pg-1 grew and is recreated under its name, as by a StatefulSet; a Deployment's pod has only its owner's size."""
    async with installed(tmp_path, "injector") as cluster:
        program = await cluster.start("first", follows_pods=True)
        assert await asked(program, postgres("pg-1")) == ""
        await create(cluster, postgres("pg-1", "3", "4Gi"))
        await create(cluster, postgres("pg-x", "2", "3Gi", owner="rs-1"))
        # The end of the old pod is seen after the new one was asked about.
        assert await asked(program, postgres("pg-1")) == "3 cpu, 4Gi"
        # It still runs: another one beside it replaces nothing.
        assert await asked(program, postgres("pg-y", owner="rs-1")) == ""
        for name in ("pg-1", "pg-x"):
            await cluster.api.delete(PODS, name)
        await cluster.clock.advance(1)
        assert await asked(program, postgres("pg-1")) == "3 cpu, 4Gi"
        assert await asked(program, postgres("pg-y", owner="rs-1")) == "2 cpu, 3Gi"
        assert await asked(program, postgres("pg-y", owner="rs-2")) == ""
        assert await asked(program, postgres("pg-2")) == ""
        await cluster.clock.advance(3599)
        assert await asked(program, postgres("pg-1")) == "3 cpu, 4Gi"
        await cluster.clock.advance(2)
        assert await asked(program, postgres("pg-1")) == ""
        counted = program.telemetry.page().decode()
    assert 'autoscale_injector_reviews_total{outcome="first_requests"} 5.0' in counted
    assert 'autoscale_injector_reviews_total{outcome="replaces"} 4.0' in counted


async def test_sizes_of_other_namespaces_stay_there() -> None:
    """The creator of a pod can name another team's controller as its owner."""
    predecessors = Predecessors(FakeClock(), InjectorTelemetry())
    informer = predecessors._pods
    theirs = postgres("pg-x", "2", "3Gi", owner="rs-1")
    theirs["metadata"] |= {"uid": "u-1", "resourceVersion": "1"}
    informer.learn(theirs)
    informer.forget(name_of(theirs))
    sizes = [predecessors.size_before(ObjectName(namespace, "pg-y"), "rs-1") for namespace in ("default", "mine")]
    assert sizes == [Resources.parse(2, "3Gi"), None]


async def test_unresizable_pods_are_created_with_reason(tmp_path: Path) -> None:
    async with installed(tmp_path, "injector") as cluster:
        program = await cluster.start("first", follows_pods=True)
        pod = postgres()
        del pod["metadata"]["annotations"]
        warning = await asked(program, pod)
        advice = "autoscaling: postgres is not resized: metadata.annotations[autoscaling.neon.tech/bounds]: expected"
        assert warning.startswith(advice)
        # Those that are there already have no size, and neither have pods of VMs.
        await create(cluster, pod)
        of_vm = postgres("vm-1")
        of_vm["metadata"]["labels"]["vm.neon.tech/name"] = "vm"
        await create(cluster, of_vm)
        assert await asked(program, postgres("pg-1")) == ""
        assert await asked(program, postgres("vm-1")) == ""


async def test_without_the_flag_no_pod_is_followed(tmp_path: Path) -> None:
    async with installed(tmp_path, "injector") as cluster:
        way = cluster.way()
        program = await cluster.start("first", way)
        await create(cluster, postgres("pg-1", "3", "4Gi"))
        assert await asked(program, postgres("pg-1")) == ""
        assert not [call for call in way.asked if call.path == PODS.path()]


async def test_ended_pods_of_others_stay_remembered() -> None:
    """One team's created and deleted pods do not displace those of other teams."""
    predecessors = Predecessors(FakeClock(), InjectorTelemetry())
    informer = predecessors._pods
    for number in range(AT_MOST + 2):
        pod = postgres(f"pg-{number}")
        namespace = "theirs" if number < 2 else "default"
        pod["metadata"] |= {"namespace": namespace, "uid": f"u-{number}", "resourceVersion": str(number + 1)}
        informer.learn(pod)
        informer.forget(name_of(pod))
    names = [ObjectName("theirs", "pg-0"), ObjectName("theirs", "pg-1"), ObjectName("default", "pg-2")]
    assert [predecessors.size_before(name, "") is not None for name in names] == [True, True, False]


async def test_oldest_ended_pods_are_dropped() -> None:
    predecessors = Predecessors(FakeClock(), InjectorTelemetry())
    informer = predecessors._pods
    for number in range(AT_MOST + 2):
        pod = postgres(f"pg-{number}")
        pod["metadata"] |= {"uid": f"u-{number}", "resourceVersion": str(number + 1)}
        informer.learn(pod)
        informer.forget(name_of(pod))
    sizes = [predecessors.size_before(name_of(postgres(f"pg-{number}")), "") for number in (0, 1, 2, AT_MOST + 1)]
    assert [size is not None for size in sizes] == [False, False, True, True]
