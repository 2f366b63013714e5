"""A compute unit that does not fit a VM is reported with both sizes."""

from __future__ import annotations

import pytest

from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources
from protocol.virtual_machine import Bounds
from scheduler_plugin.cluster.problems import unit_mismatch

SLOT = Bytes.parse("128Mi")
SHIPPED = Bounds(Resources.parse(1, "256Mi"), Resources.parse(4, "1Gi"))


def unit(cpu: str, mem: str) -> ComputeUnit:
    return ComputeUnit(MilliCpu.parse(cpu), Bytes.parse(mem))


@pytest.mark.parametrize(
    ("bounds", "compute_unit", "said"),
    [
        (SHIPPED, unit("500m", "128Mi"), None),
        (SHIPPED, unit("1", "256Mi"), None),
        (
            SHIPPED,
            unit("250m", "1Gi"),
            "the compute unit's memory of 1Gi is larger than the VM's range of 256Mi to 1Gi",
        ),
        (
            SHIPPED,
            unit("4", "2Gi"),
            "the compute unit's CPU of 4 is larger than the VM's range of 1 to 4; "
            "the compute unit's memory of 2Gi is larger than the VM's range of 256Mi to 1Gi",
        ),
        (SHIPPED, unit("300m", "256Mi"), "the VM's CPU of 1 to 4 is not a multiple of the compute unit's 300m"),
        (
            SHIPPED,
            unit("500m", "64Mi"),
            "the compute unit's memory of 64Mi is not a multiple of the VM's slot size of 128Mi",
        ),
        (
            SHIPPED,
            unit("500m", "384Mi"),
            "the VM's memory of 256Mi to 1Gi is not a multiple of the compute unit's 384Mi",
        ),
        (Bounds(SHIPPED.max, SHIPPED.max), unit("3", "3Gi"), None),
    ],
)
def test_unit_fits_whole_multiples(bounds: Bounds, compute_unit: ComputeUnit, said: str | None) -> None:
    assert unit_mismatch(bounds, SLOT, compute_unit) == said
