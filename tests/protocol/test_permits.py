"""A persisted permit is read back exactly, or refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.permits import decode_permit, encode_permit
from protocol.units import Bytes, MilliCpu, Resources
from tests.nesting import LEVELS

amounts = st.integers(0, 2**63 - 1)


def test_a_permit_is_written_for_people_to_read() -> None:
    assert encode_permit(Resources.parse("750m", "3Gi")) == '{"vCPUs":"750m","mem":"3Gi"}'
    assert encode_permit(Resources.parse(2, 100)) == '{"vCPUs":2,"mem":100}'


@given(st.builds(Resources, st.builds(MilliCpu, amounts), st.builds(Bytes, amounts)))
def test_a_permit_survives_the_annotation(permit: Resources) -> None:
    assert decode_permit(encode_permit(permit)) == permit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "document: input data was truncated"),
        ("3", "document: expected object, got int"),
        ('{"vCPUs":1}', "mem: expected a value, the field is missing"),
        ('{"vCPUs":"x","mem":1}', 'vCPUs: expected a quantity such as 2, "250m" or "1Gi", got \'x\''),
        ('{"vCPUs":1,"mem":-1}', "mem: expected a quantity of zero or more, got -1"),
        ('{"vCPUs":1,"mem":1,"x":' + "[" * LEVELS, "document: expected fewer levels of nesting"),
    ],
)
def test_a_spoiled_annotation_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^") as refused:
        decode_permit(text)
    assert str(refused.value) == message
