"""VirtualMachine objects: their fields, missing fields, and errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import ObjectName
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_PERMIT, LABEL_ENABLED
from protocol.units import ZERO, Bytes, MilliCpu, Resources
from protocol.virtual_machine import Bounds, InvalidObjectError, VirtualMachine, parse_virtual_machine, use_patch
from tests.protocol.whole_vm import BOUNDS_AT, GI, WHOLE, annotated, with_value


def test_everything_that_the_project_needs_is_read() -> None:
    assert parse_virtual_machine(WHOLE) == VirtualMachine(
        name=ObjectName("default", "pg"),
        uid="u-1",
        resource_version="7",
        labels={LABEL_ENABLED: "true", "app": "shop"},
        annotations={ANNOTATION_PERMIT: '{"vCPUs":"750m","mem":"3Gi"}'},
        bounds=Bounds(Resources.parse("250m", "512Mi"), Resources.parse(4, "8Gi")),
        use=Resources.parse("500m", "2Gi"),
        actual=Resources.parse("500m", "2Gi"),
        slot_size=Bytes.parse("512Mi"),
        pod_name="pg-x7",
        node="n1",
        pod_ip="10.0.0.7",
        phase="Running",
        enabled=True,
        permit=Resources.parse("750m", "3Gi"),
        at_most=Resources.parse(4, "8Gi"),
    )


def test_a_new_vm_has_defaults_and_no_status() -> None:
    vm = parse_virtual_machine({"metadata": {"namespace": "default", "name": "pg"}, "spec": {"guest": {}}})
    one = Resources(MilliCpu(1000), GI)
    assert vm == VirtualMachine(
        name=ObjectName("default", "pg"),
        uid="",
        resource_version="",
        labels={},
        annotations={},
        bounds=Bounds(one, one),
        use=one,
        actual=None,
        slot_size=GI,
        pod_name=None,
        node=None,
        pod_ip=None,
        phase="",
        enabled=False,
        permit=None,
        at_most=one,
    )


@pytest.mark.parametrize(
    ("given_cpus", "low", "use", "high"),
    [({"min": 2}, 2, 2, 2), ({"use": 3}, 1, 3, 3), ({"max": 4}, 1, 1, 4), ({"min": 2, "max": 4}, 2, 2, 4)],
)
def test_range_completion(given_cpus: dict[str, int], low: int, use: int, high: int) -> None:
    vm = parse_virtual_machine(with_value("spec/guest/cpus", given_cpus))
    assert [amount.whole_cpus for amount in (vm.bounds.min.cpu, vm.use.cpu, vm.bounds.max.cpu)] == [low, use, high]


def test_equal_sizes_are_shared() -> None:
    first, second = parse_virtual_machine(WHOLE), parse_virtual_machine(with_value("metadata/name", "other"))
    assert (first.bounds, first.use, first.slot_size) == (second.bounds, second.use, second.slot_size)
    grown = parse_virtual_machine(with_value("spec/guest/cpus/use", 2))
    assert (grown.use.cpu, grown.use.mem, grown.bounds) == (MilliCpu(2000), first.use.mem, first.bounds)
    slots = parse_virtual_machine(with_value("spec/guest/memorySlotSize", "1Gi"))
    assert (slots.slot_size, slots.use.mem) == (GI, GI * 4)
    assert parse_virtual_machine(WHOLE) == first


@pytest.mark.parametrize("cpus", [2, 2.0, "2", "2000m"])
def test_equal_spellings_are_equal(cpus: float | str) -> None:
    assert parse_virtual_machine(with_value("spec/guest/cpus/use", cpus)).use.cpu == MilliCpu(2000)


def test_invalid_size_is_refused_every_time() -> None:
    for cpus, shown in ((5, "5"), (5.0, "5"), ("5", "5"), (5, "5")):
        with pytest.raises(InvalidObjectError, match=f"got min 250m, use {shown}, max 4"):
            parse_virtual_machine(with_value("spec/guest/cpus/use", cpus))


@pytest.mark.parametrize("label", ["false", "True", ""])
def test_autoscaling_is_opt_in(label: str) -> None:
    assert not parse_virtual_machine(with_value("metadata/labels", {LABEL_ENABLED: label})).enabled


@pytest.mark.parametrize(("field", "value"), [("cpus", ...), ("memorySize", None), ("cpus", 0), ("memorySize", "0")])
def test_a_half_known_size_is_not_known(field: str, value: object) -> None:
    assert parse_virtual_machine(with_value(f"status/{field}", value)).actual is None


def test_empty_texts_in_the_status_mean_nothing_yet() -> None:
    vm = parse_virtual_machine(with_value("status", {"podName": "", "node": "", "podIP": "", "phase": None}))
    assert (vm.pod_name, vm.node, vm.pod_ip, vm.phase) == (None, None, None, "")


def test_annotated_bounds_replace_those_of_the_spec() -> None:
    text = '{"min":{"cpu":"500m","mem":"1Gi"},"max":{"cpu":2,"mem":"4Gi"}}'
    vm = parse_virtual_machine(annotated(ANNOTATION_BOUNDS, text))
    assert vm.bounds == Bounds(Resources.parse("500m", "1Gi"), Resources.parse(2, "4Gi"))


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (("100m", "1Gi", "2", "4Gi"), ("250m", "1Gi", "2", "4Gi")),
        (("1", "1Gi", "5", "16Gi"), ("1", "1Gi", "4", "8Gi")),
        (("100m", "512Mi", "64", "64Gi"), ("250m", "512Mi", "4", "8Gi")),
    ],
)
def test_bounds_are_clipped_to_spec(said: tuple[str, ...], counts: tuple[str, ...]) -> None:
    (low, high), (least, most) = ((Resources.parse(*each[:2]), Resources.parse(*each[2:])) for each in (said, counts))
    text = json.dumps({"min": {"cpu": said[0], "mem": said[1]}, "max": {"cpu": said[2], "mem": said[3]}})
    vm = parse_virtual_machine(annotated(ANNOTATION_BOUNDS, text))
    assert (vm.bounds, vm.has_bounds) == (Bounds(least, most), True)
    expected = "expected min <= max, both within 250m cpu, 512Mi to 4 cpu, 8Gi as in spec.guest"
    assert vm.problems == (f"{BOUNDS_AT}: {expected}, got {low} to {high}: using {least} to {most}",)


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ([], "document: expected object, got array"),
        ({}, "metadata: expected a value, the field is missing"),
        (with_value("metadata/name", ...), "metadata.name: expected a value, the field is missing"),
        (with_value("spec", ...), "spec: expected a value, the field is missing"),
        (with_value("spec/guest", None), "spec.guest: expected object, got null"),
        (
            with_value("spec/guest/memorySlotSize", "100Mi"),
            "spec.guest.memorySlotSize: expected a multiple of 8Mi above zero, got 100Mi",
        ),
        (
            with_value("spec/guest/memorySlotSize", 0),
            "spec.guest.memorySlotSize: expected a multiple of 8Mi above zero, got 0",
        ),
        (
            with_value("spec/guest/cpus/use", "250x"),
            'spec.guest.cpus.use: expected a quantity such as 2, "250m" or "1Gi", got \'250x\'',
        ),
        (
            with_value("spec/guest/cpus/use", 5),
            "spec.guest.cpus: expected 0 < min <= use <= max, got min 250m, use 5, max 4",
        ),
        (
            with_value("spec/guest/cpus/min", 0),
            "spec.guest.cpus: expected 0 < min <= use <= max, got min 0, use 500m, max 4",
        ),
        (
            with_value("spec/guest/memorySlots/min", 5),
            "spec.guest.memorySlots: expected 0 < min <= use <= max, got min 5, use 4, max 16",
        ),
        (
            with_value("spec/guest/memorySlots/max", 513),
            "spec.guest.memorySlots.max: expected at most 512 slots, got 513",
        ),
        (
            with_value("spec/guest/memorySlots/use", "1Gi"),
            "spec.guest.memorySlots.use: expected a number of memory slots (0 to 65535), got '1Gi'",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_path(obj: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidObjectError) as refused:
        parse_virtual_machine(obj)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("obj", "problem"),
    [
        (with_value("status/cpus", -1), "status.cpus: expected a quantity of zero or more, got -1"),
        (with_value("status/memorySize", {}), "status.memorySize: expected a quantity, got {}"),
        (annotated(ANNOTATION_BOUNDS, "x"), f"{BOUNDS_AT}: document: malformed: invalid character (byte 0)"),
        (
            annotated(ANNOTATION_BOUNDS, '{"min":{"cpu":1}}'),
            f"{BOUNDS_AT}: min.mem: expected a value, the field is missing",
        ),
        (
            annotated(ANNOTATION_BOUNDS, '{"min":{"cpu":1,"mem":"700Mi"},"max":{"cpu":2,"mem":"4Gi"}}'),
            f"{BOUNDS_AT}: min.mem: expected a multiple of the slot size 512Mi, got 700Mi",
        ),
        *(
            (
                annotated(
                    ANNOTATION_BOUNDS, f'{{"min":{{"cpu":{low},"mem":"1Gi"}},"max":{{"cpu":{high},"mem":"4Gi"}}}}'
                ),
                f"{BOUNDS_AT}: expected min <= max, both within 250m cpu, 512Mi to 4 cpu, 8Gi as in spec.guest,"
                f" got {low_shown} cpu, 1Gi to {shown_high} cpu, 4Gi",
            )
            for low, low_shown, high, shown_high in ((3, "3", 2, "2"), (5, "5", 6, "6"), (0.1, "100m", 0.2, "200m"))
        ),
        (
            annotated(ANNOTATION_PERMIT, '{"vCPUs":1}'),
            f"metadata.annotations[{ANNOTATION_PERMIT}]: mem: expected a value, the field is missing",
        ),
    ],
)
def test_unreadable_annotations_become_problems(obj: dict[str, object], problem: str) -> None:
    vm = parse_virtual_machine(obj)
    assert vm.problems == (problem,)
    assert vm.bounds == parse_virtual_machine(WHOLE).bounds, "those of the spec"
    assert vm.has_bounds is (BOUNDS_AT not in problem)
    assert vm.permit is None or vm.actual is None or BOUNDS_AT in problem


def test_wrong_types_count_as_empty() -> None:
    broken = {**with_value("metadata/labels", {"a": 1, LABEL_ENABLED: "true"}), "status": ["Running"]}
    vm = parse_virtual_machine(broken)
    assert (vm.labels, vm.enabled, vm.phase, vm.actual, vm.problems) == ({LABEL_ENABLED: "true"}, True, "", None, ())


def test_a_resize_touches_only_what_is_used() -> None:
    assert use_patch(Resources.parse("750m", "2Gi"), Bytes.parse("512Mi")) == {
        "spec": {"guest": {"cpus": {"use": "750m"}, "memorySlots": {"use": 4}}}
    }


@pytest.mark.parametrize(
    ("before", "guest"),
    [
        (("750m", "1Gi"), {"memorySlots": {"use": 4}}),
        (("500m", "2Gi"), {"cpus": {"use": "750m"}}),
        (("750m", "2Gi"), {}),
    ],
)
def test_resize_leaves_out_what_stays(before: tuple[str, str], guest: dict[str, object]) -> None:
    size, slot = Resources.parse("750m", "2Gi"), Bytes.parse("512Mi")
    assert use_patch(size, slot, Resources.parse(*before)) == {"spec": {"guest": guest}}


@given(st.integers(1, 10**6), st.integers(1, 2**40), st.integers(1, 512))
def test_resize_never_exceeds_target(cpu: int, mem: int, granules: int) -> None:
    use, slot = Resources(MilliCpu(cpu), Bytes(mem)), Bytes(granules * 8 * 1024**2)
    guest = use_patch(use, slot)["spec"]["guest"]  # type: ignore[index]  # JSON
    assert MilliCpu.parse(guest["cpus"]["use"]) == use.cpu
    assert use.mem.minus_or_zero(slot) < slot * (guest["memorySlots"]["use"] + 1)
    assert slot * guest["memorySlots"]["use"] <= use.mem


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
places = st.sampled_from(
    [
        "metadata",
        "metadata/name",
        "metadata/annotations",
        "spec",
        "spec/guest/cpus",
        "spec/guest/cpus/use",
        "spec/guest/memorySlotSize",
        "spec/guest/memorySlots/max",
        "status",
        "status/cpus",
    ]
)


@given(places, documents)
def test_any_value_anywhere_is_read_or_refused(place: str, value: object) -> None:
    try:
        vm = parse_virtual_machine(with_value(place, value))
    except InvalidObjectError:
        return
    assert vm.bounds.min.within(vm.bounds.max)
    assert vm.bounds.min.within(vm.use)
    assert vm.use.within(vm.bounds.max)


@given(st.text(max_size=60))
def test_no_annotation_makes_a_vm_unreadable(text: str) -> None:
    for name in (ANNOTATION_BOUNDS, ANNOTATION_PERMIT):
        vm = parse_virtual_machine(annotated(name, "{" + text))
        assert (vm.bounds, vm.permit) == (parse_virtual_machine(WHOLE).bounds, None)
        assert [problem.partition("]")[0] for problem in vm.problems] == [f"metadata.annotations[{name}"]


@pytest.mark.parametrize("name", [ANNOTATION_BOUNDS, ANNOTATION_PERMIT])
def test_hostile_annotations_become_problems(name: str) -> None:
    for text in ('{"min":' * 3000, '{"vCPUs":"1e1000000000000000000","mem":1,"min":{"cpu":1,"mem":"1e99999"}}'):
        assert len(parse_virtual_machine(annotated(name, text)).problems) == 1


@pytest.mark.parametrize(
    ("growing", "size", "problems"),
    [
        (None, ZERO, ()),
        ({"cpus": "4"}, ZERO, ()),
        ({"cpus": "2500m", "memorySize": "3Gi"}, Resources.parse("2500m", "3Gi"), ()),
        (
            {"cpus": True, "memorySize": "3Gi"},
            ZERO,
            ("status.growingTo.cpus: expected a quantity, got True",),
        ),
    ],
)
def test_growth_in_progress_is_read(growing: object, size: Resources, problems: tuple[str, ...]) -> None:
    vm = parse_virtual_machine(with_value("status/growingTo", growing))
    assert (vm.growing_to, vm.problems) == (size, problems)
