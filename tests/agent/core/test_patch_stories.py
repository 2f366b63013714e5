"""Stories of patches: failed, unknown, conflicting, superseded, and made by another writer."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.core.actions import RequestPermit
from agent.core.events import Fault, PatchConflicted, PatchFailed, VmRestored
from agent.core.explain import explain
from agent.core.policy import WATCH_LAG
from agent.core.vm import Vm
from protocol.units import Bytes, MilliCpu, Resources
from tests.agent.core.story import GIB, NETWORK, Story, asks, cu, patches, planned, settled, vm


def patching() -> Story:
    """An agent that grows its busy VM from one unit to two: the patch is in flight."""
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).acts()
    return story


def test_a_failed_patch_is_repeated_after_five_seconds() -> None:
    story = patching()
    story.at(1.5).happens(PatchFailed(Fault.VM_API, "500", refused=False)).sees(vm(cu(1), version=2))
    assert story.plans() == planned((), 6.5, "growing for cpu busy")
    assert story.at(6.5).looks(cores=0.25, span=5.5).acts() == [patches(cu(2), 2)]


def test_refused_growth_stays_reserved_for_no_one() -> None:
    """A webhook forbids the size: until the next try the agent requests only the VM's present size."""
    story = patching()
    story.at(1.5).happens(PatchFailed(Fault.VM_API, "denied by a webhook", refused=True))
    assert story.acts() == [asks(cu(1), cu(2), 3)]
    story.answers(cu(1))
    assert story.plans() == planned((), 6.5, "growing for cpu busy")
    assert explain(story.state, "db/vm-1", story.instant).because == (
        "growing for cpu busy; the API server refused this growth; try 2 in 5 s"
    )
    story.at(6.5).looks(cores=0.25, span=5.5)
    assert story.acts() == [asks(cu(2), cu(1), 4)]
    assert story.answers(cu(2)).acts() == [patches(cu(2), 1)]


def test_refused_growths_wait_longer_each_time() -> None:
    """The room for a growth that is always refused is reserved for only a few seconds of ten minutes."""
    story = settled(1)
    reserved = refused = 0
    for second in range(2, 602):
        story.at(float(second)).looks(cores=0.25)
        while actions := story.acts():
            for action in actions:
                if isinstance(action, RequestPermit):
                    story.answers(action.request.resources)
                else:
                    story.happens(PatchFailed(Fault.VM_API, "denied by a webhook", refused=True))
                    refused += 1
        reserved += story.state.scheduler.permit != cu(1)
    assert (refused, reserved) == (7, 0)
    assert story.state.vm.grows_from is not None
    story.at(story.state.vm.grows_from).looks(cores=0.25, span=story.state.vm.grows_from - 601)
    story.acts()
    story.answers(cu(2)).acts()
    assert story.obeys().state.vm.may_grow(story.instant)


def test_refused_shrink_bars_no_growth() -> None:
    story = shrunk()
    story.happens(PatchFailed(Fault.VM_API, "denied by a webhook", refused=True))
    assert story.state.vm.may_grow(story.instant)


def test_unknown_patch_counts_until_newer_version() -> None:
    story = patching()
    story.happens(PatchFailed(NETWORK, "no answer", refused=False)).sees(vm(cu(1)))
    assert story.state.held == cu(2)
    assert story.at(8.0).acts() == [asks(cu(2), cu(2), 3)]
    assert story.sees(vm(cu(1), version=2)).state.held == cu(1)


def test_two_unknown_patches_of_one_version_count_together() -> None:
    story = patching()
    story.happens(PatchFailed(NETWORK, "no answer", refused=False))
    wide = Resources(MilliCpu(250), Bytes(2 * GIB))
    story.at(6.0).looks(used=1.0, span=5.0)
    story.state.vm.patching = patches(wide, 1)
    story.happens(PatchFailed(NETWORK, "no answer", refused=False))
    assert story.state.held == cu(2)


def test_newer_version_settles_failed_patch() -> None:
    story = patching()
    story.sees(vm(cu(1), version=2)).happens(PatchFailed(NETWORK, "no answer", refused=False))
    assert story.state.held == cu(1)


def test_conflict_waits_for_newer_view() -> None:
    story = patching()
    story.happens(PatchConflicted())
    assert story.plans().actions == ()
    assert story.sees(vm(cu(1), version=4)).acts() == [patches(cu(2), 4)]


def test_conflict_with_newer_view_retries_at_once() -> None:
    story = patching()
    story.sees(vm(cu(1), version=3)).happens(PatchConflicted())
    assert story.acts() == [patches(cu(2), 3)]


def permitted(version: int, permit: float) -> Vm:
    """A VM of one unit with ``permit`` units recorded on it."""
    return replace(vm(cu(1), version=version), recorded_permit=cu(permit))


def test_growth_waits_for_view_with_its_permit() -> None:
    """The scheduler stores a permit before it answers, so a patch based on an older view conflicts."""
    story = settled(1).sees(permitted(2, 1)).looks(cores=0.25)
    story.acts()
    story.answers(cu(2))
    assert story.plans() == planned((), story.now + WATCH_LAG, "growing for cpu busy")
    assert story.at(1.02).sees(permitted(3, 2)).acts() == [patches(cu(2), 3)]


def test_lagging_watch_delays_growth_briefly() -> None:
    story = settled(1).sees(permitted(2, 1)).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).at(story.now + WATCH_LAG)
    assert story.acts() == [patches(cu(2), 2)]


def test_shrink_waits_for_no_view() -> None:
    story = settled(4).sees(replace(vm(cu(4), version=2), recorded_permit=cu(4)))
    for second in range(2, 9):
        story.at(second).looks()
    assert patches(cu(1), 2) in story.acts()


def test_an_older_view_that_arrives_late_changes_nothing() -> None:
    story = settled(1).sees(vm(cu(2), version=5)).sees(vm(cu(1), version=4))
    assert story.state.held == cu(2)


def test_views_that_cannot_be_ordered_replace_each_other() -> None:
    story = settled(1).sees(vm(cu(2), version=0)).sees(vm(cu(1), version=0))
    assert story.state.held == cu(1)


def test_foreign_growth_is_requested_or_reverted() -> None:
    story = settled(1).looks()
    story.sees(vm(cu(3), version=2))
    assert story.acts() == [asks(cu(3), cu(1), 2)]
    story.answers(cu(1))
    assert story.plans().actions == (patches(cu(1), 2),)


def test_growth_by_another_writer_is_kept_where_permitted() -> None:
    story = settled(1).looks().sees(vm(cu(3), version=2))
    story.acts()
    assert story.answers(cu(3)).plans() == planned((), 8.0, "holding: less has not been proven to be enough")


def test_taking_back_stops_at_the_memory_in_use() -> None:
    story = settled(1).looks(used=2.5)
    story.sees(vm(cu(6), version=2)).acts()
    story.answers(cu(1))
    assert story.plans().actions == (patches(Resources(MilliCpu(250), Bytes(3 * GIB)), 2),)


def shrunk() -> Story:
    """A VM that had four units, and has been ordered to have one at 6.1 s."""
    story = settled(4)
    for second in range(1, 6):
        story.at(second * 1.02).looks(span=1.02)
    assert story.acts() == [patches(cu(1), 1)]
    return story


def test_waits_caused_by_shrink_do_not_grow() -> None:
    story = shrunk()
    began = story.now
    story.at(began + 0.5).looks(cores=0.1, stall=0.9, runnable=2.0, span=0.5)
    assert story.acts() == [], "CPUs go offline and everything waits, before anybody can see that they went"
    story.at(began + 1.0).obeys().acts()
    story.answers(cu(1))
    for second in (1.5, 2.5, 3.5, 4.5):
        story.at(began + second).looks(cores=0.1, stall=0.9, runnable=2.0)
        assert story.acts() == []
    story.at(began + 5.5).looks(cores=0.2, stall=0.9, runnable=2.0)
    assert story.acts() == [asks(cu(8), cu(1), 3)], "what still waits long after waits for something else"


def test_late_shrink_settles_from_observation() -> None:
    story = shrunk()
    began = story.now
    story.at(began + 5.0).sees(vm(cu(1), version=2)).at(began + 6.0).looks(cores=0.1, stall=0.9, runnable=2.0)
    assert [action for action in story.acts() if action != asks(cu(1), cu(4), 2)] == []


def test_load_after_shrink_grows_at_next_scrape() -> None:
    story = shrunk().obeys()
    story.acts()
    story.answers(cu(1)).at(story.now + 1.0).looks(cores=0.2, stall=0.9, runnable=7.0)
    assert story.acts() == [asks(cu(8), cu(1), 3)]


def test_restored_object_replaces_newer_view() -> None:
    story = settled().sees(vm(cu(2), version=9))
    story.happens(VmRestored(vm(cu(1), version=4)))
    assert story.state.held == cu(1)
    story.sees(vm(cu(3), version=5))
    assert story.state.held == cu(3), "versions begin again from there"


def test_first_object_may_be_restored() -> None:
    restored, plain = Story(), Story()
    restored.happens(VmRestored(vm(cu(1), version=4)))
    plain.sees(vm(cu(1), version=4))
    assert (restored.state.vm, restored.state.scheduler) == (plain.state.vm, plain.state.scheduler)


@pytest.mark.parametrize(
    "outcome", [PatchConflicted(), PatchFailed(Fault.NETWORK, "away", refused=False)], ids=["conflict", "no answer"]
)
@pytest.mark.parametrize("is_seen_first", [True, False])
def test_restore_settles_pending_patch(outcome: PatchConflicted | PatchFailed, *, is_seen_first: bool) -> None:
    story = settled(4)
    story.sees(vm(cu(4), version=7))
    for second in range(1, 6):
        story.at(second * 1.02).looks(span=1.02)
    assert story.acts() == [patches(cu(1), 7)]
    restored = VmRestored(vm(cu(4), version=3))
    for event in (restored, outcome) if is_seen_first else (outcome, restored):
        story.happens(event)
    for _ in range(8):
        story.at(story.now + 1.02).looks(span=1.02)
    assert patches(cu(1), 3) in story.plans().actions


@pytest.mark.parametrize("is_answered_first", [True, False])
def test_restore_drops_the_permit(*, is_answered_first: bool) -> None:
    story = settled(1).sees(vm(cu(1), version=7)).looks(cores=0.25)
    story.acts()
    if is_answered_first:
        story.answers(cu(2))
    story.happens(VmRestored(vm(cu(1), version=3)))
    if not is_answered_first:
        story.answers(cu(2))
    story.at(story.now + 1.0).looks(cores=0.25)
    assert {type(action) for action in story.acts()} == {RequestPermit}
    assert story.answers(cu(2)).acts() == [patches(cu(2), 3)]
