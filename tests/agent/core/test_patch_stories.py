"""Stories of patches: failed, unknown, conflicting, overtaken, and made by somebody else."""

from __future__ import annotations

from agent.core.events import Fault, PatchConflicted, PatchFailed
from protocol.units import Bytes, MilliCpu, Resources
from tests.agent.core.story import GIB, NETWORK, asks, cu, patches, planned, settled, vm


def test_a_failed_patch_is_repeated_after_five_seconds() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).acts()
    story.at(1.5).happens(PatchFailed(Fault.VM_API, "500", refused=True))
    assert story.plans() == planned((), 6.5, "growing for cpu busy")
    assert story.at(6.5).looks(cores=0.25, span=5.5).acts() == [patches(cu(2), 1)]


def test_a_patch_of_unknown_outcome_counts_as_in_effect_until_the_object_has_moved_on() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).acts()
    story.happens(PatchFailed(NETWORK, "no answer", refused=False)).sees(vm(cu(1)))
    assert story.state.held == cu(2)
    assert story.at(8.0).acts() == [asks(cu(2), cu(2), 3)]
    assert story.sees(vm(cu(1), version=2)).state.held == cu(1)


def test_two_unknown_patches_of_one_version_count_together() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).acts()
    story.happens(PatchFailed(NETWORK, "no answer", refused=False))
    wide = Resources(MilliCpu(250), Bytes(2 * GIB))
    story.at(6.0).looks(used=1.0, span=5.0)
    story.state.vm.patching = patches(wide, 1)
    story.happens(PatchFailed(NETWORK, "no answer", refused=False))
    assert story.state.held == cu(2)


def test_a_patch_whose_version_has_passed_is_settled_however_it_failed() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).acts()
    story.sees(vm(cu(1), version=2)).happens(PatchFailed(NETWORK, "no answer", refused=False))
    assert story.state.held == cu(1)


def test_after_a_conflict_it_waits_for_a_newer_view_and_patches_at_once() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).acts()
    story.happens(PatchConflicted())
    assert story.plans().actions == ()
    assert story.sees(vm(cu(1), version=4)).acts() == [patches(cu(2), 4)]


def test_a_conflict_with_a_view_that_has_come_meanwhile_needs_no_wait() -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(cu(2)).acts()
    story.sees(vm(cu(1), version=3)).happens(PatchConflicted())
    assert story.acts() == [patches(cu(2), 3)]


def test_an_older_view_that_arrives_late_changes_nothing() -> None:
    story = settled(1).sees(vm(cu(2), version=5)).sees(vm(cu(1), version=4))
    assert story.state.held == cu(2)


def test_views_that_cannot_be_ordered_replace_each_other() -> None:
    story = settled(1).sees(vm(cu(2), version=0)).sees(vm(cu(1), version=0))
    assert story.state.held == cu(1)


def test_somebody_elses_growth_is_asked_for_and_taken_back_where_denied() -> None:
    story = settled(1).looks()
    story.sees(vm(cu(3), version=2))
    assert story.acts() == [asks(cu(3), cu(1), 2)]
    story.answers(cu(1))
    assert story.plans().actions == (patches(cu(1), 2),)


def test_somebody_elses_growth_is_kept_where_permitted() -> None:
    story = settled(1).looks().sees(vm(cu(3), version=2))
    story.acts()
    assert story.answers(cu(3)).plans() == planned((), 8.0, "holding: less has not been proven to be enough")


def test_taking_back_stops_at_the_memory_in_use() -> None:
    story = settled(1).looks(used=2.5)
    story.sees(vm(cu(6), version=2)).acts()
    story.answers(cu(1))
    assert story.plans().actions == (patches(Resources(MilliCpu(250), Bytes(3 * GIB)), 2),)
