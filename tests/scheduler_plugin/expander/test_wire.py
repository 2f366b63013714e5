"""Questions of both wire generations are read alike, and a part that cannot be read spoils only its group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ranking.prices import Needs
from protocol.units import ZERO, Resources
from scheduler_plugin.expander.scaleup import NodeShape, PodNeeds, ScaleUp, ScaleUpOption
from scheduler_plugin.expander.wire import MalformedScaleUpError, decode_scale_up, encode_groups
from tests.scheduler_plugin.expander.questions import (
    container,
    field,
    fields_of,
    groups_of,
    machine,
    node,
    option,
    pod,
    quantities,
    question,
)

SMALL = container(cpu="500m", memory="1Gi")


@pytest.mark.parametrize("legacy", [True, False])
def test_both_generations_say_the_same(legacy: bool) -> None:
    pods = [pod("p1", SMALL), pod("p2", SMALL, container(cpu="1", gpu="2"), uid="u2")]
    body = question(
        [option("a", 3, pods, legacy=legacy), option("b", 1, pods[:1], legacy=legacy)],
        {"a": machine("m-4", "4", "16Gi"), "b": machine("g-8", "8", "32Gi", gpus=1)},
        legacy=legacy,
    )
    first = PodNeeds("default/p1", Needs(Resources.parse("500m", "1Gi")))
    second = PodNeeds("u2", Needs(Resources.parse("1500m", "1Gi"), gpus=2))
    assert decode_scale_up(body) == ScaleUp(
        options=(ScaleUpOption("a", 3, (first, second)), ScaleUpOption("b", 1, (first,))),
        shapes={
            "a": NodeShape(("m-4",), Needs(Resources.parse(4, "16Gi"))),
            "b": NodeShape(("g-8",), Needs(Resources.parse(8, "32Gi"), gpus=1)),
        },
        problems={},
    )


def test_newer_message_generation_wins() -> None:
    old, new = pod("old", SMALL), pod("new", SMALL)
    body = question(
        [field(1, "a") + field(2, 1) + field(4, old) + field(5, new)], {"a": machine("new", "8", "8Gi")}
    ) + field(2, field(1, "a") + field(2, machine("old", "1", "1Gi")))
    scale_up = decode_scale_up(body)
    assert [needs.key for needs in scale_up.options[0].pods] == ["default/new"]
    assert scale_up.shapes["a"].price_keys == ("new",)


@pytest.mark.parametrize(
    ("body", "needs"),
    [
        (pod("p"), ("0", "0", 0)),
        (pod("p", SMALL, SMALL), ("1", "2Gi", 0)),
        (pod("p", SMALL, overhead={"cpu": "250m"}), ("750m", "1Gi", 0)),
        (pod("p", SMALL, initial=[container(cpu="2", memory="100Mi")]), ("2", "1Gi", 0)),
        (pod("p", SMALL, initial=[container(always=True, cpu="1", gpu="1")]), ("1500m", "1Gi", 1)),
        (pod("p", SMALL, initial=[container(always=True, cpu="1"), container(cpu="3")]), ("4", "1Gi", 0)),
        (pod("p", SMALL, initial=[container(cpu="3"), container(always=True, cpu="1")]), ("3", "1Gi", 0)),
        (pod("p", SMALL, resources={"cpu": "2", "memory": "3Gi"}, overhead={"cpu": "250m"}), ("2250m", "3Gi", 0)),
        (pod("p", SMALL, resources={"memory": "512Mi"}), ("500m", "512Mi", 0)),
        (pod("p", resources={"cpu": "2"}, initial=[container(cpu="3", gpu="1")]), ("2", "0", 1)),
    ],
)
def test_a_pod_needs_what_kube_scheduler_counts(body: bytes, needs: tuple[str, str, int]) -> None:
    (found,) = decode_scale_up(question([option("a", 1, [body])], {})).options[0].pods
    cpu, mem, gpus = needs
    assert found.needs == Needs(Resources.parse(cpu, mem), gpus)


def test_local_storage_is_read_in_gigabytes() -> None:
    storage = {"ephemeral-storage": "30G"}
    body = pod("p", container(storage="50G"), container(storage="25G"), initial=[container(storage="80G")])
    asked = decode_scale_up(
        question([option("a", 1, [body, pod("q", overhead=storage)])], {"a": node("n", {}, storage, {})})
    )
    assert [each.needs for each in asked.options[0].pods] == [Needs(ZERO, 0, 80.0), Needs(ZERO, 0, 30.0)]
    assert asked.shapes == {"a": NodeShape((), Needs(ZERO, 0, 30.0))}


def test_instance_type_label_is_optional() -> None:
    old = node("n", {"beta.kubernetes.io/instance-type": "m-1"}, {}, {"cpu": "1", "memory": "1Gi"})
    shapes = decode_scale_up(question([], {"old": old, "bare": node("n", {}, {"cpu": "2"}, {"cpu": "1"})})).shapes
    assert shapes == {
        "old": NodeShape(("m-1",), Needs(Resources.parse(1, "1Gi"))),
        "bare": NodeShape((), Needs(Resources.parse(2, 0))),
    }


def test_unreadable_group_affects_itself() -> None:
    bad_pod, good_pod = pod("p1", container(cpu="lots")), pod("p2", SMALL)
    scale_up = decode_scale_up(
        question(
            [option("a", 1, [good_pod]), option("b", 1, [bad_pod]), option("c", 1, [b"\xff"])],
            {"a": machine("m", "4", "4Gi"), "d": machine("m", "4x", "4Gi"), "e": b"\xff"},
        )
    )
    assert scale_up.problems.keys() == {"b", "c", "d", "e"}
    assert scale_up.problems["b"] == (
        'cannot decode a pod: expected a quantity such as 2, "250m" or "1Gi", got \'lots\''
    )
    assert [(o.group, len(o.pods)) for o in scale_up.options] == [("a", 1), ("b", 0), ("c", 0)]
    assert scale_up.shapes.keys() == {"a"}


def test_a_negative_number_of_nodes_is_none() -> None:
    minus_one = b"".join((field(1, "a"), b"\x10", b"\xff" * 9 + b"\x01"))
    assert decode_scale_up(question([minus_one], {})).options == (ScaleUpOption("a", 0, ()),)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        decode_scale_up(body)
    except MalformedScaleUpError as error:
        assert str(error).startswith("expected a BestOptionsRequest")  # noqa: PT017 - either outcome is right


def test_an_answer_names_the_groups_and_says_why() -> None:
    answer = encode_groups([("a", 3, "cheapest"), ("b", 1, "tied")])
    assert groups_of(answer) == ["a", "b"]
    assert [fields_of(body, 3) for body in fields_of(answer, 1)] == [[b"cheapest"], [b"tied"]]


@pytest.mark.parametrize(
    ("resource", "gpus"),
    [
        ("nvidia.com/mig-1g.5gb", 7),
        ("nvidia.com/gpu.shared", 7),
        ("habana.ai/gaudi", 7),
        ("aws.amazon.com/neuron", 7),
        ("google.com/tpu", 7),
        ("gpu.intel.com/i915", 7),
        ("example.com/dongle", 7),
        ("hugepages-2Mi", 0),
        ("attachable-volumes-aws-ebs", 0),
        ("cloud.kubernetes.io/slot", 0),
        ("vpc.amazonaws.com/pod-eni", 0),
        ("networking.gke.io.networks/blue.IP", 0),  # 128 on every node
        ("sgx.intel.com/epc", 0),  # in bytes
        ("kubernetes.azure.com/sgx_epc_mem_in_MiB", 0),
    ],
)
def test_extended_resources_are_accelerators(resource: str, gpus: int) -> None:
    shape = node("n", {}, {"cpu": "4", "memory": "16Gi", resource: "7"}, {})
    asked = pod("p", field(8, quantities(2, {resource: "7"})))
    found = decode_scale_up(question([option("a", 1, [asked])], {"a": shape}))
    assert (found.shapes["a"].offers.gpus, found.options[0].pods[0].needs.gpus) == (gpus, gpus)


def test_template_has_keys_of_its_pool_and_lifecycle() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "n1-standard-8",
        "cloud.google.com/gke-nodepool": "spot-pool",
        "cloud.google.com/gke-spot": "true",
    }
    found = decode_scale_up(question([], {"https://gce/mig-1": node("n", labels, {"cpu": "8"}, {})}))
    assert found.shapes["https://gce/mig-1"].price_keys == ("spot-pool", "n1-standard-8/spot", "n1-standard-8")
