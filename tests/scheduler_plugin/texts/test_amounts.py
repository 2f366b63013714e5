from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.units import Bytes, MilliCpu, Resources
from scheduler_plugin.texts.amounts import amounts_text

MIB = 1024**2


@given(st.integers(0, 10**6), st.integers(0, 2**42))
def test_rounded_amounts_stay_meaningful(cpu: int, mem: int) -> None:
    said = amounts_text(Resources(MilliCpu(cpu), Bytes(mem))).split(" and ")
    assert len(said) == max(1, (cpu > 0) + (mem > 0))
    for each in said:
        number, _, unit = each.partition(" ")
        told = {"": 0, "vCPU": 1000, "MiB": MIB, "GiB": 1024 * MIB}[unit] * (float(number) if unit else 0)
        assert told >= (cpu if unit == "vCPU" else mem if unit else cpu + mem) / 2
