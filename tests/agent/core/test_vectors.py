"""The worked cases of the protocol that are an agent's business: which permits it believes."""

from __future__ import annotations

import pytest

from agent.core.permits import permit_error
from protocol.units import Bytes, MilliCpu, Resources

GIB = 1024**3


def size(cpu: int, gib: int) -> Resources:
    return Resources(MilliCpu(cpu), Bytes(gib * GIB))


REQUEST, USING = size(500, 2), size(250, 1)


@pytest.mark.parametrize("permit", [size(500, 2), size(500, 1), size(250, 2), size(250, 1)])
def test_a_permit_between_use_and_request_is_believed(permit: Resources) -> None:
    assert permit_error(permit, REQUEST, USING) is None


@pytest.mark.parametrize(
    ("permit", "complaint"),
    [
        (size(0, 2), "permit with a zero amount: 0 cpu, 2Gi"),
        (size(500, 0), "permit with a zero amount: 500m cpu, 0"),
        (size(750, 2), "the permit (750m cpu, 2Gi) is above the request (500m cpu, 2Gi)"),
        (size(500, 3), "the permit (500m cpu, 3Gi) is above the request (500m cpu, 2Gi)"),
        (size(200, 2), "the permit (200m cpu, 2Gi) is below the size in use (250m cpu, 1Gi)"),
    ],
)
def test_every_other_permit_is_refused_with_the_reason(permit: Resources, complaint: str) -> None:
    assert permit_error(permit, REQUEST, USING) == complaint
