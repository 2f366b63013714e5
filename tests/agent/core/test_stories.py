"""Tests of one agent: its actions, their order, and its next plan. Every plan is compared as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from agent.core.actions import PatchVm, RequestPermit
from agent.core.events import Fault, PatchConflicted, RequestFailed, Scraped, VmLost
from agent.core.vm import Vm
from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources, Seconds
from tests.agent.core.story import (
    GIB,
    NETWORK,
    POLICY,
    UNIT,
    Story,
    asks,
    cu,
    holding,
    patches,
    planned,
    sample,
    settled,
    vm,
)


def test_first_request_learns_compute_unit() -> None:
    story = Story()
    assert story.plans() == planned((), None, "the object has not been read yet")
    story.sees(vm(cu(2)))
    because = "no compute unit yet: requesting its current size"
    assert story.plans() == planned((asks(cu(2), None, 1, unit=None),), None, because)
    story.acts()
    assert story.plans() == planned((), None, because)


def test_odd_size_is_requested_without_compute_unit() -> None:
    odd = Resources(MilliCpu(300), Bytes(GIB))
    assert Story().sees(vm(odd)).acts() == [asks(odd, None, 1, unit=None)]


def test_first_request_claims_no_permit() -> None:
    """No agent may have received the permit that is recorded on the object."""
    story = Story().sees(structs.replace(vm(cu(1)), recorded_permit=cu(3)))
    assert story.acts() == [asks(cu(1), None, 1, unit=None)]


def recording(size: float, permit: float, version: int) -> Vm:
    """The VM, and the permit on its object."""
    return structs.replace(vm(cu(size), version=version), recorded_permit=cu(permit))


def test_withdrawn_permit_is_requested_again() -> None:
    """Autoscaling was off and on again while the watch was down."""
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.at(1.1).answers(cu(2)).sees(recording(1, 1, version=9))
    assert story.acts() == [asks(cu(2), cu(1), 3)], "no patch to what the object does not record"
    story.at(1.2).answers(cu(2)).sees(recording(1, 2, version=10))
    assert story.acts() == [patches(cu(2), 10)]


def test_permit_on_the_object_is_used() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.at(1.1).answers(cu(2)).sees(recording(1, 2, version=9))
    assert story.acts() == [patches(cu(2), 9)]


def test_agent_stands_back_on_conflict() -> None:
    """The scheduler answers another agent of the VM: this one patches nothing."""
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.at(1.1).happens(RequestFailed(Fault.AGENT, "the scheduler serves another agent", is_superseded=True))
    story.sees(vm(cu(4), version=9))
    assert story.acts() == []
    assert story.state.scheduler.permit is None
    (ask,) = story.at(20.0).looks(cores=0.1).acts()
    assert isinstance(ask, RequestPermit)
    assert ask.request.last_permit is None
    story.at(20.1).answers(cu(4)).at(40.0).looks(cores=0.1).looks(cores=0.1)
    assert not story.state.scheduler.is_superseded


def test_agent_that_stands_back_shrinks_nothing() -> None:
    """The one that is answered decides; this one shrinks its idle VM once it is answered again."""
    story = settled(4).at(8.0)
    story.acts()
    story.happens(RequestFailed(Fault.AGENT, "the scheduler serves another agent", is_superseded=True))
    for second in range(9, 30):
        story.at(second).looks()
        assert not [each for each in story.acts() if isinstance(each, PatchVm)]
    assert story.answers(cu(4)).acts()[0] == patches(cu(1), 1)


def test_ignores_recorded_permit_beside_original_scheduler() -> None:
    story = Story(unit=UNIT).sees(structs.replace(vm(cu(1)), recorded_permit=cu(8))).looks()
    assert story.acts() == [asks(cu(1), None, 1)]
    story.answers(cu(1)).at(1.0).looks(cores=0.25)
    assert story.acts() == [asks(cu(2), cu(1), 2)], "what it was permitted itself it presents"


def test_start_jitter_spreads_first_requests() -> None:
    story = Story(jitter=0.5).sees(vm(cu(1)))
    assert story.plans() == planned((), story.state.begins_at, "no compute unit yet: requesting its current size")
    assert story.state.begins_at == 0.5
    assert story.at(0.5).acts() == [asks(cu(1), None, 1, unit=None)]


def test_growth_asks_then_patches() -> None:
    story = settled(1).looks(cores=0.25, stall=0.0)
    assert story.acts() == [asks(cu(2), cu(1), 2)]
    story.at(1.1).answers(cu(2))
    assert story.plans() == planned((patches(cu(2), 1),), 8.0, "growing for cpu busy")
    story.acts()
    assert story.at(1.2).obeys().plans() == planned((), 8.0, "sized for cpu busy")


def test_waiting_tasks_raise_the_need() -> None:
    story = settled(1).looks(cores=0.25, stall=0.75)
    assert story.acts() == [asks(cu(4), cu(1), 2)]


def test_proven_shrink_patches_then_reports() -> None:
    story = settled(4)
    for second in range(1, 5):
        story.at(second).looks(used=0.5)
        assert story.acts() == []
    assert story.at(5.1).looks(used=0.5, span=1.1).acts() == [patches(cu(1), 1)]
    assert story.plans().actions == (), "nothing is told while the patch may still fail"
    told = story.at(5.2).obeys().acts()
    assert told == [asks(cu(1), cu(4), 2, used=0.5)]
    assert story.answers(cu(1)).plans() == planned((), 12.2, "sized for memory used")


def test_a_restart_is_no_proof_for_shrinking() -> None:
    story = settled(4).looks()
    assert story.plans() == planned((), 7.0, "holding: less has not been proven to be enough")


def test_partial_permit_is_used_and_retried() -> None:
    story = settled(1).looks(cores=0.25, stall=0.75)
    story.acts()
    partial = Resources(MilliCpu(600), Bytes(3 * GIB))
    story.at(1.1).answers(partial)
    assert story.plans() == planned((patches(partial, 1),), 3.1, "growing for cpu waiting")
    story.acts()
    story.at(1.2).obeys()
    assert story.plans() == planned((), 3.1, "growing for cpu waiting")
    assert story.at(3.1).acts() == [asks(cu(4), partial, 3)]


def test_denied_vm_asks_every_three_seconds() -> None:
    story = settled(1).looks(cores=0.25)
    waits = []
    for _ in range(6):
        assert story.acts() == [asks(cu(2), cu(1), story.state.scheduler.sequence - 1)]
        wake = story.answers(cu(1)).plans().wake_at
        assert wake is not None
        waits.append(round(wake - story.now, 1))
        span = wake - story.now
        story.at(wake).looks(cores=0.25, span=span)
    assert waits == [2.0, 3.0, 3.0, 3.0, 3.0, 3.0]


def test_reports_when_denied_size_is_unwanted() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(1)).at(2.0).looks(cores=0.1)
    assert story.acts() == [asks(cu(1), cu(1), 3)]
    assert story.answers(cu(1)).state.scheduler.denial is None


def test_first_load_triggers_a_request() -> None:
    story = Story().sees(vm(cu(1)))
    assert story.acts() == [asks(cu(1), None, 1, unit=None)]
    story.answers(cu(1))
    assert story.plans().actions == ()
    assert story.at(1.0).looks().acts() == [asks(cu(1), cu(1), 2)]
    assert story.answers(cu(1)).at(2.0).looks().plans().actions == ()


def test_rounding_denial_does_not_loop() -> None:
    odd = Resources(MilliCpu(600), Bytes(GIB))
    story = Story().sees(vm(odd)).looks()
    story.acts()
    story.answers(odd).at(1.0)
    assert story.acts() == []
    assert story.at(7.0).acts() == [asks(Resources(MilliCpu(750), Bytes(GIB)), odd, 2)]
    story.answers(odd)
    assert story.plans() == planned((), 14.0, "no metrics: not below its current size")


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (RequestFailed(Fault.SCHEDULER, "not ready", Seconds(1.0)), [3.0, 4.5, 6.8, 10.1, 12.0]),
        (RequestFailed(Fault.SCHEDULER, "not the leader; leader is b", Seconds(0.0)), [0.5, 0.8, 1.1, 1.7, 2.5]),
        (RequestFailed(NETWORK, "no answer"), [0.5, 0.8, 1.1, 1.7, 2.5]),
    ],
    ids=["refused", "stands by", "not reached"],
)
def test_failed_requests_back_off(failed: RequestFailed, expected: list[float]) -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.at(1.1).happens(failed)
    assert story.plans() == planned((), 1.1 + expected[0], "growing for cpu busy")
    waits = []
    for _ in range(5):
        wake = story.plans().wake_at
        assert wake is not None
        waits.append(round(wake - story.now, 1))
        assert len(story.at(wake).acts()) == 1
        story.happens(failed)
    assert waits == expected


def test_succession_retries_end() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.at(1.1).happens(RequestFailed(NETWORK, "no answer"))
    waits = []
    for _ in range(12):
        wake = story.plans().wake_at
        assert wake is not None
        waits.append(round(wake - story.now, 1))
        story.at(wake).acts()
        story.happens(RequestFailed(NETWORK, "no answer"))
    assert waits == [0.5, 0.8, 1.1, 1.7, 2.5, 3.0, 3.0, 3.0, 12.0, 12.0, 12.0, 12.0]


def test_retry_after_is_capped_at_tick() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.happens(RequestFailed(Fault.SCHEDULER, "not ready", Seconds(5.0)))
    assert story.plans().wake_at == 6.0
    story.at(6.0).acts()
    story.happens(RequestFailed(Fault.SCHEDULER, "not ready", Seconds(3600.0)))
    assert story.plans().wake_at == 13.0


def test_a_lost_answer_lowers_what_is_certain() -> None:
    """The scheduler may have taken the smaller request: growing again needs another permit."""
    story = settled(2).sees(vm(cu(1), version=2))
    assert story.acts() == [asks(cu(1), cu(2), 2)]
    story.happens(RequestFailed(Fault.SCHEDULER, "no answer")).at(2.0).looks(cores=0.25, span=2.0)
    assert story.plans() == planned((), 4.0, "growing for cpu busy")
    assert story.at(4.0).acts() == [asks(cu(2), cu(1), 3)]


def test_growing_back_within_the_permit_needs_no_request() -> None:
    story = settled(2)
    for second in range(1, 6):
        story.at(second + second / 50).looks(span=1.02)
    assert story.acts() == [patches(cu(1), 1)]
    story.looks(cores=0.25, span=0.0).at(6.2).looks(cores=0.25, span=1.1)
    assert story.plans().actions == ()
    story.obeys()
    assert story.plans().actions == (patches(cu(2), 2),)


def test_migration_order_freezes_vm() -> None:
    story = settled(1).looks(cores=0.25, stall=0.5)
    story.acts()
    story.at(1.1).answers(cu(1), migrate=True)
    frozen = "migrating: size frozen until the scheduler releases it"
    assert story.plans() == planned((), 3.1, frozen)
    assert story.at(3.1).looks(cores=0.25, span=2.1).acts() == [asks(cu(1), cu(1), 3)]
    story.answers(cu(1), migrate=True)
    assert story.plans() == planned((), 5.1, frozen)
    story.at(5.1).acts()
    assert story.answers(cu(1)).looks(cores=0.25, span=2.0).acts() == [asks(cu(2), cu(1), 5)]


def test_in_flight_patch_counts_during_migration() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).acts()
    story.at(8.0).acts()
    story.answers(cu(2), migrate=True)
    assert story.at(10.0).acts() == [asks(cu(2), cu(2), 4)]


def test_a_changed_compute_unit_changes_the_next_request() -> None:
    story = settled(1)
    big = ComputeUnit(MilliCpu(1000), Bytes(4 * GIB))
    assert story.at(7.0).acts() == [asks(cu(1), cu(1), 2)]
    story.answers(cu(1), unit=big).looks(span=6.0).at(8.0).looks(cores=0.25)
    assert story.acts() == [asks(cu(4), cu(1), 3, unit=big)]


def test_lowered_bounds_spare_memory_in_use() -> None:
    story = settled(4).looks(used=2.5)
    story.sees(vm(cu(4), version=2, high=2))
    assert story.acts() == [patches(Resources(MilliCpu(500), Bytes(3 * GIB)), 2)]


def test_kernel_share_is_spared_after_shrink() -> None:
    story = settled(4).sees(vm(cu(4), version=2, high=2))
    total, used = int(3.5 * GIB), int(1.75 * GIB)
    story.happens(
        Scraped(structs.replace(sample(0.0, 0.0, 0.0), mem_total=Bytes(total), mem_available=Bytes(total - used)))
    )
    least = Resources(MilliCpu(500), Bytes(3 * GIB))
    assert story.acts() == [patches(least, 2)]
    story.obeys()
    assert [action for action in story.acts() if isinstance(action, PatchVm)] == []


def test_higher_bounds_are_asked_for_at_once() -> None:
    story = settled(1).looks().sees(vm(cu(1), version=2, low=2))
    assert story.acts() == [asks(cu(2), cu(1), 2)]


def test_bounds_without_metrics_take_cpu_but_no_memory() -> None:
    story = Story().sees(vm(cu(4), high=2))
    story.acts()
    story.answers(cu(4))
    assert story.plans().actions == (patches(Resources(MilliCpu(500), Bytes(4 * GIB)), 1),)


def test_odd_maximum_is_requested_exactly() -> None:
    story = settled(1).looks(cores=2.0)
    story.sees(vm(cu(1), version=2, high=5.5))
    seen = story.state.vm.observed
    assert seen is not None
    assert story.acts() == [asks(cu(5.5), cu(1), 2)]


def test_unfinished_shrink_bars_next_for_five_seconds() -> None:
    story = settled(8, replace(POLICY, smoothing=holding(2.0)))
    for second in range(1, 6):
        story.at(second + second / 50).looks(used=1.5, span=1.02)
        if second < 5:
            story.plans()
    assert story.acts() == [patches(cu(3), 1)]
    left = Resources(MilliCpu(750), Bytes(5 * GIB))
    story.obeys().sees(vm(cu(3), actual=left, version=3))
    assert story.acts() == [asks(left, cu(8), 2, used=1.5)]
    story.answers(left)
    for second in range(6, 10):
        story.at(second + second / 50).looks(used=0.2, span=1.02)
        assert story.acts() == []
    wake = story.at(9.5).looks(used=0.2, span=0.3).plans()
    assert wake.actions == ()
    assert wake.wake_at == 5.1 + 5.0
    assert story.at(10.2).looks(used=0.2).acts() == [patches(cu(1), 3)]


def test_stale_metrics_freeze_the_size() -> None:
    story = settled(2).looks(cores=0.75).at(7.0)
    assert story.plans().because == "no metrics: not below its current size"


def test_partial_metrics_allow_only_growth() -> None:
    story = settled(2)
    story.looks(span=0.0)
    seen = story.state.guest.observed
    assert seen is not None
    story.at(5.0).happens(Scraped(structs.replace(seen.sample, mem_available=None)))
    assert story.plans().because == "some metrics are missing: not below its current size"


def test_the_agent_of_another_pod_keeps_still() -> None:
    story = Story().sees(structs.replace(vm(cu(1)), ours=False))
    assert story.plans() == planned((), None, "the VM runs in another pod, whose agent scales it")


def test_unresizable_vm_is_left_alone() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.sees(structs.replace(vm(cu(1), version=2), resizable=False)).answers(cu(2))
    frozen = "not resizable: its phase forbids it, or its opt-in label is missing"
    assert story.plans() == planned((asks(cu(1), cu(2), 3),), None, frozen), "what it cannot use it gives back"
    story.acts()
    assert story.answers(cu(1)).plans() == planned((), 8.0, frozen)


def test_opted_in_again_asks_before_growing() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    assert story.answers(cu(2)).plans().actions == (patches(cu(2), 1),)
    story.sees(structs.replace(vm(cu(1), version=2), resizable=False, enabled=False))
    assert (story.state.scheduler.permit, story.state.scheduler.ceiling) == (None, None)
    assert story.plans().actions == (), "what is not counted need not be asked for before its time"
    story.sees(vm(cu(1), version=3))
    assert [type(action) for action in story.acts()] == [RequestPermit], "and no patch"
    assert story.answers(cu(2)).plans().actions == (patches(cu(2), 3),)


def test_answer_during_opt_out_permits_nothing() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.sees(structs.replace(vm(cu(1), version=2), resizable=False, enabled=False)).sees(vm(cu(1), version=3))
    story.answers(cu(2))
    assert story.state.scheduler.ceiling is None
    assert [type(action) for action in story.acts()] == [RequestPermit], "it asks at once"
    assert story.answers(cu(2)).state.scheduler.ceiling == cu(2)


def test_lost_vm_failure_lasts_until_seen() -> None:
    story = settled(1).happens(VmLost(Fault.VM_API, "gone")).at(2.0).happens(VmLost(Fault.VM_API, "gone"))
    lost = story.state.vm.lost
    assert lost is not None
    assert (lost.since, lost.last, lost.count) == (1.0, 2.0, 2)
    assert story.sees(vm(cu(1), version=2)).state.vm.lost is None


def test_outcomes_of_nothing_change_nothing() -> None:
    story = settled(1)
    before = story.plans()
    story.answers(cu(8)).happens(RequestFailed(NETWORK, "late")).happens(PatchConflicted())
    assert story.plans() == before
    assert story.state.scheduler.permit == cu(1)


def test_the_sequence_rises_with_every_request() -> None:
    story = settled(1)
    numbers: list[int | None] = []
    for second in (7.0, 14.0, 21.0):
        numbers += [action.request.sequence for action in story.at(second).acts() if isinstance(action, RequestPermit)]
        story.answers(cu(1))
    assert numbers == [2, 3, 4]
