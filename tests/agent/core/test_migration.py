"""A VM migrates: its agents freeze its size at both ends, and the target's agent continues after its arrival (S4.9,
S4.12).
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.core.actions import PatchVm, RequestPermit
from agent.core.events import Fault, ScrapeFailed
from agent.core.vm import Vm, view
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine
from tests.agent.core.story import Story, asks, cu, patches, planned, settled, vm

ELSEWHERE = "the VM runs in another pod, whose agent scales it"
ORDERED = "migrating: size frozen until the scheduler releases it"
HELD = "not resizable: its phase forbids it, or its opt-in label is missing"


def moving(version: int, *, ours: bool = True, size: float = 1) -> Vm:
    """The VM while its phase is PreMigrating or Migrating."""
    return replace(vm(cu(size), version=version), resizable=False, ours=ours, recorded_permit=cu(size))


def arrived(version: int, size: float = 1) -> Vm:
    """The VM runs in the pod of this agent, with the permit that a scheduler wrote down."""
    return replace(vm(cu(size), version=version), recorded_permit=cu(size))


def ordered() -> Story:
    """The source's agent, whose guest needs more, has seen the order to migrate."""
    story = settled(1).looks(cores=0.25).at(2.0).looks(cores=0.25)
    story.acts()
    return story.answers(cu(1), migrate=True)


def test_source_agent_freezes_during_migration() -> None:
    story = ordered()
    assert story.plans() == planned((), 4.0, ORDERED)
    story.at(4.0).looks(cores=0.25, span=2.0).sees(moving(2))
    assert story.acts() == [asks(cu(1), cu(1), 3)], "it only asks whether the order still stands"
    story.answers(cu(1), migrate=True).at(5.0).sees(moving(3))
    assert story.plans() == planned((), 6.0, ORDERED)
    story.sees(arrived(4)).sees(replace(arrived(5), ours=False))
    assert story.at(60.0).plans() == planned((), None, ELSEWHERE), "then it is another's VM"


def test_manual_migration_freezes_by_phase() -> None:
    story = settled(1).sees(moving(2)).looks(cores=0.25).at(2.0).looks(cores=0.25)
    assert (story.plans().because, story.acts()) == (HELD, [])


def test_failed_migration_lets_source_grow() -> None:
    story = ordered().at(4.0).looks(cores=0.25, span=2.0).sees(moving(2))
    story.acts()
    story.answers(cu(1), migrate=True).at(5.0).looks(cores=0.25).sees(vm(cu(1), version=3))
    assert story.plans() == planned((), 6.0, ORDERED), "the order stands until the scheduler takes it back"
    story.at(6.0).looks(cores=0.25)
    assert story.acts() == [asks(cu(1), cu(1), 4)]
    story.answers(cu(1))
    assert story.acts() == [asks(cu(2), cu(1), 5)]
    story.answers(cu(2))
    assert story.acts() == [patches(cu(2), 3)]


def test_target_agent_asks_for_present_size() -> None:
    story = Story().sees(moving(2, ours=False)).happens(ScrapeFailed(Fault.GUEST, "refused"))
    assert story.at(20.0).plans() == planned((), None, ELSEWHERE)
    story.at(21.0).sees(arrived(3)).looks(cores=0.25)
    (ask,) = story.acts()
    assert isinstance(ask, RequestPermit)
    assert (ask.request.resources, ask.request.last_permit) == (cu(1), None), "what it has, no more, no less"
    story.answers(cu(1)).at(22.0).looks(cores=0.25)
    assert story.acts() == [asks(cu(2), cu(1), 2)]
    story.answers(cu(2)).sees(replace(arrived(4), recorded_permit=cu(2)))
    assert story.acts() == [patches(cu(2), 4)], "it grows one second after it arrived"


def test_target_agent_needs_proof_to_shrink() -> None:
    waited = Story().sees(moving(2, ours=False, size=4)).happens(ScrapeFailed(Fault.GUEST, "refused")).at(21.0)
    assert shrinks_first_at(waited) == shrinks_first_at(Story().at(21.0)) >= 21 + 4


def shrinks_first_at(story: Story) -> float:
    """Times of the first patch and of the first patch to the minimum, for an oversized VM that has just arrived."""
    story.sees(arrived(3, size=4))
    while not (patched := [action for action in story.looks().acts() if isinstance(action, PatchVm)]):
        if story.state.scheduler.in_flight is not None:
            story.answers(cu(4))
        story.at(story.now + 1)
    assert patched == [patches(cu(1), 3)]
    return story.now


@pytest.mark.parametrize("phase", ["PreMigrating", "Migrating"])
@pytest.mark.parametrize(("runs_in", "ours"), [("vm-1-pod", True), ("vm-1-pod-2", False), (None, False)])
def test_only_named_pod_is_ours(phase: str, runs_in: str | None, ours: bool) -> None:
    seen = view(running_in(runs_in, phase), "vm-1-pod")
    assert (seen.ours, seen.resizable) == (ours, False)


def running_in(pod: str | None, phase: str) -> VirtualMachine:
    """The VM's object, running in this pod."""
    return parse_virtual_machine(
        {
            "metadata": {
                "namespace": "default",
                "name": "vm-1",
                "resourceVersion": "7",
                "labels": {"autoscaling.neon.tech/enabled": "true"},
            },
            "spec": {"guest": {}},
            "status": {"phase": phase} | ({"podName": pod} if pod else {}),
        }
    )
