"""A floor raises a VM's minimum for a while (S3.7): the agent requests a permit first, and stays within the bounds."""

from __future__ import annotations

from msgspec.structs import replace

from agent.core.vm import VmFloor
from protocol.units import Bytes, Instant, MilliCpu, Resources
from protocol.virtual_machine import Bounds
from tests.agent.core.story import GIB, asks, cu, patches, settled, vm


def test_idle_vm_asks_and_grows_to_floor() -> None:
    story = settled(1).looks()
    story.sees(replace(vm(cu(1), version=2), floor=VmFloor(cu(3), Instant(60.0))))
    assert story.plans().because == "not below its floor of 750m cpu, 3Gi "
    assert story.acts() == [asks(cu(3), cu(1), 2)]
    story.answers(cu(3))
    assert story.acts() == [patches(cu(3), 2)]


def test_floor_rounds_up_to_compute_units() -> None:
    story = settled(1).looks()
    floor = VmFloor(Resources(MilliCpu(300), Bytes(GIB // 2)), Instant(60.0))
    assert story.sees(replace(vm(cu(1), version=2), floor=floor)).acts() == [
        asks(Resources(MilliCpu(500), Bytes(GIB)), cu(1), 2)
    ]


def test_a_floor_that_is_not_renewed_ends() -> None:
    held = replace(vm(cu(1)), floor=VmFloor(cu(3), Instant(60.0)))
    assert [held.bounds_at(Instant(at)).min for at in (59.9, 60.0)] == [cu(3), cu(1)]


def test_a_floor_stays_within_the_bounds() -> None:
    held = replace(vm(cu(2), low=2, high=4), floor=VmFloor(Resources(cu(8).cpu, cu(1).mem), Instant(60.0)))
    assert held.bounds_at(Instant(0.0)) == Bounds(Resources(cu(4).cpu, cu(2).mem), cu(4))


def test_reason_prefers_need_above_floor() -> None:
    story = settled(1).looks(cores=0.25, stall=0.75)
    story.sees(replace(vm(cu(1), version=2), floor=VmFloor(cu(2), Instant(60.0))))
    assert story.plans().because == "growing for cpu waiting"
    assert story.acts() == [asks(cu(4), cu(1), 2)]
