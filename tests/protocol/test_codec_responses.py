"""Responses of every version: permits, the compute unit under each of its names, and orders to migrate."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MalformedMessageError, PluginResponseView, decode_response, encode_response
from protocol.messages import PluginResponse
from protocol.units import ZERO, Bytes, ComputeUnit, MilliCpu, Resources, Seconds
from protocol.versions import ProtocolVersion
from tests.protocol.wire_examples import SLOT

V = ProtocolVersion
UNIT = ComputeUnit.parse("250m", "1Gi")
WHOLE_UNIT = ComputeUnit.parse(1, "4Gi")
PERMIT = Resources.parse(2, "8Gi")


def written(version: V, permit: Resources = PERMIT, unit: ComputeUnit = UNIT, *, migrate: bool = False) -> object:
    return json.loads(encode_response(version, PluginResponse(permit, unit, migrate), SLOT))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (V.SEED, {"permit": {"vCPUs": 2, "mem": 8}, "resourceUnit": {"vCPUs": 1, "mem": 4}}),
        *(
            (
                version,
                {
                    "permit": {"vCPUs": 2, "mem": 8},
                    "migrate": None,
                    "computeUnit": {"vCPUs": 1, "mem": 4},
                    "resourceUnit": {"vCPUs": 1, "mem": 4},
                },
            )
            for version in (V.V1_0, V.V1_1)
        ),
        *(
            (
                version,
                {
                    "permit": {"vCPUs": 2, "mem": 8},
                    "migrate": None,
                    "computeUnit": {"vCPUs": "250m", "mem": 1},
                    "resourceUnit": {"vCPUs": "250m", "mem": 1},
                },
            )
            for version in (V.V2_0, V.V2_1)
        ),
        (V.V3_0, {"permit": {"vCPUs": 2, "mem": 8}, "migrate": None}),
        (V.V4_0, {"permit": {"vCPUs": 2, "mem": "8Gi"}, "migrate": None}),
        (V.V5_0, {"permit": {"vCPUs": 2, "mem": "8Gi"}, "migrate": None}),
    ],
)
def test_each_version_has_its_words(version: V, expected: object) -> None:
    assert written(version) == expected


@pytest.mark.parametrize("version", list(V))
def test_an_order_to_migrate_is_an_empty_object(version: V) -> None:
    answer = written(version, migrate=True)
    assert isinstance(answer, dict)
    assert answer["migrate"] == {}


@pytest.mark.parametrize("version", list(V))
def test_sleeping_vm_is_permitted_nothing(version: V) -> None:
    answer = encode_response(version, PluginResponse(ZERO, WHOLE_UNIT), SLOT)
    assert decode_response(version, answer, SLOT).permit == ZERO


def test_permit_rounds_down_to_version_and_slots() -> None:
    """NeonVM's agents would patch a VM forever for a permitted part of a slot, because it never gets that part."""
    odd = Resources.parse("2750m", "8500Mi")
    assert [written(version, odd)["permit"] for version in (V.V1_1, V.V2_1, V.V4_0, V.V5_0)] == [  # type: ignore[index]  # JSON
        {"vCPUs": 2, "mem": 8},
        {"vCPUs": "2750m", "mem": 8},
        {"vCPUs": "2750m", "mem": "8Gi"},
        {"vCPUs": "2750m", "mem": "8Gi"},
    ]


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        ("1Gi", {"vCPUs": "250m", "mem": 1}),
        ("128Mi", {"vCPUs": "250m", "mem": 8}),
        ("2Gi", {"vCPUs": "500m", "mem": 1}),
        ("768Mi", {"vCPUs": "750m", "mem": 4}),
        ("520Mi", {"vCPUs": "250m", "mem": 2}),  # 65 units would be exact: too coarse to size a VM with
    ],
)
def test_unit_becomes_multiple_of_slots(slot: str, said: object) -> None:
    answer = json.loads(encode_response(V.V2_1, PluginResponse(PERMIT, UNIT), Bytes.parse(slot)))
    assert answer["computeUnit"] == said


@pytest.mark.parametrize("name", ["computeUnit", "resourceUnit"])
@pytest.mark.parametrize("version", [v for v in V if v < V.V3_0])
def test_an_agent_understands_either_name_of_the_unit(version: V, name: str) -> None:
    answer = json.dumps({"permit": {"vCPUs": 2, "mem": 8}, name: {"vCPUs": 1, "mem": 4}}).encode()
    assert decode_response(version, answer, SLOT) == PluginResponseView(PERMIT, WHOLE_UNIT, migrate=False)


@pytest.mark.parametrize("version", [v for v in V if v >= V.V3_0])
def test_v3_responses_have_no_unit(version: V) -> None:
    answer = json.dumps({"permit": {"vCPUs": 2, "mem": 8}, "computeUnit": {"vCPUs": 1, "mem": 4}}).encode()
    assert decode_response(version, answer, SLOT).compute_unit is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "document: input data was truncated"),
        (b"[]", "document: expected object, got array"),
        (b"{}", "permit: expected a value, the field is missing"),
        (b'{"permit":{"vCPUs":1,"mem":1}}', "computeUnit: expected a value, the field is missing"),
        (
            b'{"permit":{"vCPUs":1,"mem":1},"computeUnit":{"vCPUs":0,"mem":1}}',
            "computeUnit: expected vCPUs and mem above zero, got 0 cpu, 1Gi",
        ),
        (
            b'{"permit":{"vCPUs":1,"mem":1},"migrate":true,"computeUnit":{"vCPUs":1,"mem":1}}',
            "migrate: expected object | null, got bool",
        ),
        (
            b'{"permit":{"vCPUs":-1,"mem":1},"computeUnit":{"vCPUs":1,"mem":1}}',
            "permit.vCPUs: expected a quantity of zero or more, got -1",
        ),
    ],
)
def test_a_bad_response_names_its_field(answer: bytes, message: str) -> None:
    with pytest.raises(MalformedMessageError) as refused:
        decode_response(V.V2_1, answer, SLOT)
    assert str(refused.value) == message


milli = st.integers(1, 64_000)
amounts = st.builds(lambda cpu, mem: Resources(MilliCpu(cpu), Bytes(mem * 1024**2)), milli, st.integers(1, 2**18))
units = st.builds(lambda cpu, mem: ComputeUnit(MilliCpu(cpu), Bytes(mem * 1024**2)), milli, st.integers(1, 2**14))
slots = st.integers(1, 512).map(lambda granules: Bytes(granules * 8 * 1024**2))


@given(st.sampled_from(list(V)), amounts, units, st.booleans(), slots)
def test_permits_never_grow_on_wire(
    version: V, permit: Resources, unit: ComputeUnit, migrate: bool, slot: Bytes
) -> None:
    view = decode_response(version, encode_response(version, PluginResponse(permit, unit, migrate), slot), slot)
    assert view.permit.within(permit)
    assert permit.within(view.permit + Resources(MilliCpu(1000), slot))
    assert view.migrate is migrate
    assert (view.compute_unit is None) == (version >= V.V3_0)
    assert view.compute_unit is None or unit.within(view.compute_unit)


@pytest.mark.parametrize("version", list(V))
def test_size_to_shrink_to_survives_the_way(version: V) -> None:
    # Zero: it is to sleep.
    for size in (WHOLE_UNIT * 2, ZERO):
        response = PluginResponse(WHOLE_UNIT * 3, WHOLE_UNIT, shrink_to=size, ask_again=Seconds(2.5))
        view = decode_response(version, encode_response(version, response, SLOT), SLOT)
        assert (view.shrink_to, view.ask_again) == (size, 2.5)


@pytest.mark.parametrize("version", list(V))
def test_new_field_is_sent_only_if_needed(version: V) -> None:
    fields = json.loads(encode_response(version, PluginResponse(PERMIT, UNIT), SLOT))
    assert not {"shrinkTo", "askAgain"} & set(fields)


@pytest.mark.parametrize("wait", [b"-1", b"86401", b"1e999", b'"2"', b"true"])
def test_absurd_time_to_ask_again_is_refused(wait: bytes) -> None:
    body = b'{"permit":{"vCPUs":1,"mem":2},"computeUnit":{"vCPUs":1,"mem":4},"askAgain":' + wait + b"}"
    with pytest.raises(MalformedMessageError, match=r"^askAgain: "):
        decode_response(V.V2_1, body, SLOT)
