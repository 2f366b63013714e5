"""Requests of every version: content, spelling, and optional fields."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MalformedMessageError, decode_request, encode_request
from protocol.messages import AgentRequest, Metrics, ObjectName
from protocol.units import ZERO, Bytes, ComputeUnit, MilliCpu, Resources
from protocol.versions import ProtocolVersion, VersionRange
from tests.protocol.wire_examples import SLOT, body

V = ProtocolVersion
POD = ObjectName("default", "pg-1")
UNIT = ComputeUnit.parse("250m", "1Gi")
PLENTY = Resources.parse(2, "4Gi")


def decoded(version: int, **changes: object) -> AgentRequest:
    return decode_request(body(version, **changes)).resolve(SLOT)


@pytest.mark.parametrize("version", list(V))
def test_plain_request_is_version_independent(version: V) -> None:
    wire = decode_request(body(version))
    assert (wire.version, wire.pod) == (version, POD)
    assert wire.resolve(SLOT) == AgentRequest(
        pod=POD,
        resources=Resources.parse(2, "3Gi"),
        last_permit=None,
        compute_unit=UNIT if version >= V.V4_0 else None,
        metrics=Metrics(0.5) if version is V.V5_0 else Metrics(0.5, 0.25, Bytes(1048576)),
    )


def test_unversioned_request_is_seed_era() -> None:
    assert decode_request(body(0, protoVersion=...)).version is V.SEED


@pytest.mark.parametrize("version", [-1, 8, 2**40])
def test_a_version_that_nobody_published_is_refused(version: int) -> None:
    with pytest.raises(MalformedMessageError) as refused:
        decode_request(body(7, protoVersion=version))
    assert str(refused.value) == f"protoVersion: expected 0 to 7, got {version}"


def test_a_server_may_accept_fewer_versions() -> None:
    only_newest = VersionRange(7, 7)
    assert decode_request(body(7), only_newest).version is V.V5_0
    for version in (0, 6, 8):
        with pytest.raises(MalformedMessageError) as refused:
            decode_request(body(7, protoVersion=version), only_newest)
        assert str(refused.value) == f"protoVersion: expected 7 to 7, got {version}"
    with pytest.raises(MalformedMessageError):
        decode_request(body(7, protoVersion=8), VersionRange(0, 9))


@pytest.mark.parametrize("version", [v for v in V if v < V.V4_0])
@pytest.mark.parametrize("slots", [3, "3", 3.0])
def test_memory_is_counted_in_slots_before_v4_0(version: V, slots: object) -> None:
    asked = decode_request(body(version, resources={"vCPUs": 1, "mem": slots}))
    assert asked.resolve(Bytes(128 * 1024**2)).resources.mem == Bytes(384 * 1024**2)


@pytest.mark.parametrize("slots", ["3Gi", "1e3", 3.5, 65536, -1, "-1", "", "9" * 30, "٣"])
def test_what_is_no_count_of_slots_is_refused(slots: object) -> None:
    with pytest.raises(MalformedMessageError) as refused:
        decoded(4, resources={"vCPUs": 1, "mem": slots})
    assert str(refused.value) == f"resources.mem: expected a number of memory slots (0 to 65535), got {slots!r}"


@pytest.mark.parametrize(("memory", "value"), [(1073741824, 2**30), ("1Gi", 2**30), ("1.5Gi", 3 * 2**29), (1e9, 10**9)])
@pytest.mark.parametrize("version", [V.V4_0, V.V5_0])
def test_memory_is_in_bytes_from_v4_0_on(version: V, memory: object, value: int) -> None:
    assert decoded(version, resources={"vCPUs": 1, "mem": memory}).resources.mem == Bytes(value)


@pytest.mark.parametrize("version", [v for v in V if v < V.V2_0])
def test_cpus_are_whole_before_v2_0(version: V) -> None:
    assert decoded(version, resources={"vCPUs": "2", "mem": 1}).resources.cpu == MilliCpu(2000)
    for fraction in ("250m", 0.25):
        with pytest.raises(MalformedMessageError) as refused:
            decoded(version, resources={"vCPUs": fraction, "mem": 1})
        assert str(refused.value) == (
            f"resources.vCPUs: expected a whole number of vCPUs in this version, got {fraction!r}"
        )


@pytest.mark.parametrize("version", [v for v in V if v >= V.V2_0])
@pytest.mark.parametrize("quarter", ["250m", 0.25, "0.25"])
def test_cpus_may_be_fractions_from_v2_0_on(version: V, quarter: object) -> None:
    assert decoded(version, resources={"vCPUs": quarter, "mem": 1}).resources.cpu == MilliCpu(250)


@pytest.mark.parametrize("version", list(V))
@pytest.mark.parametrize("metrics", [None, ...])
def test_metrics_may_be_missing_from_v1_1_on(version: V, metrics: object) -> None:
    if version >= V.V1_1:
        assert decoded(version, metrics=metrics).metrics is None
        return
    with pytest.raises(MalformedMessageError) as refused:
        decoded(version, metrics=metrics)
    assert str(refused.value) == "metrics: expected a value, this version requires metrics"


@pytest.mark.parametrize("version", list(V))
def test_the_last_permit_counts_from_v2_1_on(version: V) -> None:
    last = {"vCPUs": 1, "mem": 2}
    expected = None
    if version >= V.V2_1:
        expected = Resources(MilliCpu(1000), Bytes(2) if version >= V.V4_0 else SLOT * 2)
    assert decoded(version, lastPermit=last).last_permit == expected


@pytest.mark.parametrize("version", [V.V4_0, V.V5_0])
@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (..., "computeUnit: expected a value, the field is missing"),
        (None, "computeUnit: expected a value, the field is missing"),
        ({"vCPUs": 0, "mem": 1}, "computeUnit: expected vCPUs and mem above zero, got 0 cpu, 1"),
        ({"vCPUs": "250m", "mem": 0}, "computeUnit: expected vCPUs and mem above zero, got 250m cpu, 0"),
        ({"vCPUs": "250m"}, "computeUnit.mem: expected a value, the field is missing"),
    ],
)
def test_v4_requests_carry_unit(version: V, unit: object, message: str) -> None:
    with pytest.raises(MalformedMessageError) as refused:
        decoded(version, computeUnit=unit)
    assert str(refused.value) == message


@pytest.mark.parametrize("version", list(V))
def test_sleeping_vm_asks_for_nothing(version: V) -> None:
    assert decoded(version, resources={"vCPUs": 0, "mem": 0}).resources == ZERO
    nothing = AgentRequest(POD, ZERO, PLENTY, UNIT, Metrics(0.5, 0.25), sequence=7)
    assert decode_request(encode_request(version, nothing, SLOT)).resolve(SLOT).resources == ZERO


@pytest.mark.parametrize("field", ["vCPUs", "mem"])
@pytest.mark.parametrize("version", list(V))
def test_nothing_of_one_resource_is_refused(version: V, field: str) -> None:
    with pytest.raises(MalformedMessageError) as refused:
        decoded(version, resources={"vCPUs": 1, "mem": 1} | {field: 0})
    assert str(refused.value) == f"resources.{field}: expected more than zero"


@pytest.mark.parametrize("version", list(V))
def test_fields_that_we_do_not_know_are_ignored(version: V) -> None:
    assert decoded(version, future={"deep": [1, {"x": None}]}) == decoded(version)


def test_our_own_agent_writes_what_v2_1_prescribes() -> None:
    wish = AgentRequest(POD, Resources.parse("750m", "3Gi"), Resources.parse("500m", "2Gi"), None, Metrics(0.5, 0.25))
    assert json.loads(encode_request(V.V2_1, wish, SLOT)) == {
        "protoVersion": 4,
        "pod": {"namespace": "default", "name": "pg-1"},
        "resources": {"vCPUs": "750m", "mem": 3},
        "lastPermit": {"vCPUs": "500m", "mem": 2},
        "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.25},
    }


def test_newest_version_fields() -> None:
    wish = AgentRequest(POD, Resources.parse(1, "1536Mi"), None, UNIT, Metrics(0.5, 0.25, Bytes(7)))
    assert json.loads(encode_request(V.V5_0, wish, SLOT)) == {
        "protoVersion": 7,
        "pod": {"namespace": "default", "name": "pg-1"},
        "resources": {"vCPUs": 1, "mem": "1536Mi"},
        "lastPermit": None,
        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
        "metrics": {"loadAvg1M": 0.5},
    }


def test_seed_era_rounds_reports_up() -> None:
    wish = AgentRequest(POD, Resources.parse("1250m", "2500Mi"), metrics=Metrics(0.5))
    assert json.loads(encode_request(V.SEED, wish, SLOT)) == {
        "pod": {"namespace": "default", "name": "pg-1"},
        "resources": {"vCPUs": 2, "mem": 3},
        "metrics": {"loadAvg1M": 0.5},
    }


def test_last_permit_rounds_down() -> None:
    wish = AgentRequest(POD, Resources.parse(1, "3Gi"), last_permit=Resources.parse("1", "2500Mi"))
    assert json.loads(encode_request(V.V2_1, wish, SLOT))["lastPermit"] == {"vCPUs": 1, "mem": 2}


def test_a_request_carries_its_number_in_every_version() -> None:
    for version in V:
        wish = AgentRequest(POD, Resources.parse(1, "1Gi"), None, UNIT, Metrics(0.5), sequence=2**62)
        assert decode_request(encode_request(version, wish, SLOT)).resolve(SLOT).sequence == 2**62
        with pytest.raises(MalformedMessageError, match=r"^sequence: expected int >= 0"):
            decode_request(body(version, sequence=-1))


@pytest.mark.parametrize("version", list(V))
def test_request_says_what_its_vm_needs(version: V) -> None:
    # Without CPU it may sleep.
    for needs in (Resources.parse(1, "1Gi"), Resources.parse(0, "1Gi")):
        wish = AgentRequest(POD, Resources.parse(2, "4Gi"), None, UNIT, Metrics(0.5), needs=needs)
        assert decode_request(encode_request(version, wish, SLOT)).resolve(SLOT).needs == needs
    with pytest.raises(MalformedMessageError, match=r"^needs\.mem: "):
        decode_request(body(version, needs={"vCPUs": 1, "mem": -1})).resolve(SLOT)


def test_required_fields_must_be_written() -> None:
    with pytest.raises(ValueError, match="protocol version V1_0 requires metrics"):
        encode_request(V.V1_0, AgentRequest(POD, Resources.parse(1, "1Gi")), SLOT)
    with pytest.raises(ValueError, match="protocol version V4_0 requires a compute unit"):
        encode_request(V.V4_0, AgentRequest(POD, Resources.parse(1, "1Gi")), SLOT)


amounts = st.builds(
    lambda cpu, slots: Resources(MilliCpu(cpu * 1000), SLOT * slots), st.integers(1, 64), st.integers(1, 512)
)
loads = st.floats(0, 1000)


@given(
    version=st.sampled_from(list(V)),
    asked=amounts,
    last=st.none() | amounts,
    metrics=st.builds(Metrics, loads, loads, st.builds(Bytes, st.integers(0, 2**50))),
)
def test_what_one_side_writes_the_other_reads(
    version: V, asked: Resources, last: Resources | None, metrics: Metrics
) -> None:
    wish = AgentRequest(POD, asked, last, UNIT, metrics)
    assert decode_request(encode_request(version, wish, SLOT)).resolve(SLOT) == AgentRequest(
        pod=POD,
        resources=asked,
        last_permit=last if version >= V.V2_1 else None,
        compute_unit=UNIT if version >= V.V4_0 else None,
        metrics=Metrics(metrics.load1) if version is V.V5_0 else metrics,
    )
