"""Memory of a postgres pod shrinks only after a trial, and never at the cost of CPU (B.7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.core.actions import PatchVm, RequestPermit
from agent.core.events import Fault, MonitorAnswered, MonitorJoined, MonitorLost, PatchConflicted, PatchFailed
from agent.core.pods.pauses import NO_PAUSES, ResizePause, Resource
from agent.core.policy import Policy, Timing
from protocol.guest.monitor_messages import DownscaleRequest, DownscaleResult, UpscaleConfirmation, UpscaleNotification
from protocol.pod_database import DEFERRED, ERROR, INFEASIBLE
from protocol.units import Instant, Seconds
from protocol.virtual_machine import Bounds
from tests.agent.core.pods.pod_story import (
    FLOOR,
    MOST,
    accepts,
    because,
    loaded,
    obeys,
    patched_to,
    patches_in,
    pod,
    says,
    settled_pod,
    size,
)
from tests.agent.core.story import POLICY, Story, holding


def shrinking(*, verdict: str = "") -> Story:
    """At 7 s a pod of 2Gi has been ordered to have 1Gi, which it does not have yet."""
    has = size("250m", "2Gi")
    story = loaded(settled_pod(has), 7.0, 0.1)
    assert patches_in(story) == []
    assert because(story) == "trying a smaller memory size before shrinking to it"
    says(story, DownscaleRequest(FLOOR), DownscaleResult(2, ok=True))
    assert patches_in(story) == [patched_to(FLOOR, 1)]
    return accepts(story).sees(pod(FLOOR, 3, actual=has, verdict=verdict))


def test_failed_shrink_unblocks_cpu_within_a_second() -> None:
    """The kubelet cannot lower the limit, and the load begins in the same second."""
    story = shrinking(verdict=ERROR)
    story.at(7.9).looks(cores=0.25, span=0.9)
    assert patches_in(story) == [patched_to(size("250m", "2Gi"), 3, "mem")]
    assert patches_in(obeys(story)) == [patched_to(size("500m", "2Gi"), 4)]
    says(obeys(story), UpscaleNotification(size("500m", "2Gi")), UpscaleConfirmation(4))
    assert (
        because(story)
        == "holding: less has not been proven to be enough; memory shrink is retried in 5 s (try 2): Error: no room"
    )


def test_failed_shrink_is_tried_again_after_a_pause() -> None:
    story = shrinking(verdict=ERROR)
    assert patches_in(story) == [patched_to(size("250m", "2Gi"), 3, "mem")]
    says(obeys(story), UpscaleNotification(size("250m", "2Gi")), UpscaleConfirmation(4))
    loaded(story, 11.0, 0.1)
    assert story.plans().message is None
    loaded(story, 12.0, 0.1)
    says(story, DownscaleRequest(FLOOR), DownscaleResult(6, ok=True))
    assert patches_in(story) == [patched_to(FLOOR, 4)]
    obeys(story)
    assert story.state.vm.pauses.set_pauses == (), "once it has less, nothing is remembered"


def test_unfinished_shrink_is_taken_back_for_cpu() -> None:
    story = shrinking()
    story.at(7.5).looks(cores=0.2, span=0.5)
    assert patches_in(story) == [patched_to(size("250m", "2Gi"), 3)]
    assert patches_in(obeys(story)) == [patched_to(size("500m", "2Gi"), 4)]


def test_trial_is_called_off_for_cpu() -> None:
    story = loaded(settled_pod(size("250m", "2Gi")), 7.0, 0.1)
    says(story, DownscaleRequest(FLOOR), None)
    loaded(story, 7.0, 0.1)
    assert story.plans().message is None, "the trial goes on"
    story.at(8.0).looks(cores=0.25)
    says(story, UpscaleNotification(size("250m", "2Gi")), UpscaleConfirmation(4))
    assert patches_in(story) == [patched_to(size("500m", "2Gi"), 1)]


def test_trial_continues_between_rare_scrapes() -> None:
    """Each trial evicts page cache, and takes longer than metrics are fresh."""
    rare = Policy(POLICY.cpu, POLICY.memory, holding(20.0, max_gap=15.0), Timing(scrape=Seconds(10.0)))
    story = settled_pod(size("250m", "2Gi"), policy=rare)
    for at in (10.0, 20.0, 30.0, 40.0):
        story.at(at).looks(used=0.1)
    says(story, DownscaleRequest(FLOOR), None).at(49.0)
    assert story.plans().message is None, "the trial goes on"
    story.happens(MonitorAnswered(DownscaleResult(2, ok=True)))
    assert patches_in(story) == [patched_to(FLOOR, 1)]


def test_agreement_lapses_while_cpu_grows() -> None:
    """The reclaimer holds memory down until the patch; that must not slow a load that comes in between."""
    story = loaded(settled_pod(size("250m", "2Gi")), 7.0, 0.1)
    says(story, DownscaleRequest(FLOOR), DownscaleResult(2, ok=True))
    story.at(7.9).looks(cores=0.25, span=0.9)
    assert patches_in(story) == [patched_to(size("500m", "2Gi"), 1)]
    says(story, UpscaleNotification(size("250m", "2Gi")), UpscaleConfirmation(4))


def test_memory_stays_without_reclaimer() -> None:
    """Its earlier approval does not count either, because it has released the memory."""
    has = size("250m", "2Gi")
    story = loaded(settled_pod(has), 7.0, 0.1)
    says(story, DownscaleRequest(FLOOR), DownscaleResult(2, ok=False, status="reread too much"))
    assert because(story) == "keeping memory: the trial of 1Gi failed: reread too much"
    story.happens(MonitorLost(Fault.GUEST, "gone"))
    loaded(story, 600.0, 0.1)
    assert patches_in(story) == []
    assert because(story) == "keeping memory: no trial of less memory is possible yet"
    story.happens(MonitorJoined(2))
    says(story, UpscaleNotification(has), UpscaleConfirmation(2))
    says(story, DownscaleRequest(FLOOR), DownscaleResult(4, ok=True)).happens(MonitorLost(Fault.GUEST, "gone"))
    assert patches_in(story) == []


def test_failed_trials_become_rare() -> None:
    """Each evicts page cache. A guest's monitor is asked every minute, which costs nothing."""
    has = size("250m", "2Gi")
    story, waits = loaded(settled_pod(has), 7.0, 0.1), []
    for number in range(2, 22, 2):
        says(story, DownscaleRequest(FLOOR), DownscaleResult(number, ok=False, status="reread too much"))
        refusal = story.state.monitor.refusal
        assert refusal is not None
        waits.append(refusal.retry_at - story.now)
        loaded(story, story.now + waits[-1], 0.1)
    assert waits == [5, 10, 20, 40, 80, 160, 320, 640, 900, 900]


def test_cancelled_trials_become_rare() -> None:
    """A load that comes and goes would otherwise evict page cache each time."""
    has, waits = size("250m", "2Gi"), []
    story = loaded(settled_pod(has), 7.0, 0.1)
    for number in range(2, 12, 2):
        says(story, DownscaleRequest(FLOOR), None)
        story.at(story.now + 1.0).looks(used=1.5)
        says(story, UpscaleNotification(has), UpscaleConfirmation(number + 1))
        ended = story.now
        while story.plans().message is None:
            loaded(story, story.now + 1.0, 0.1)
        waits.append(story.now - ended)
    assert waits == [6, 10, 20, 40, 80]
    assert because(story) == "keeping memory: the trial of 1Gi failed: the pod needed more again"


def test_refused_memory_shrink_does_not_delay_cpu() -> None:
    """Kubernetes 1.33 refuses to lower a memory limit."""
    has = size("500m", "2Gi")
    story = loaded(settled_pod(has), 7.0, 0.0)
    assert patches_in(story) == [patched_to(size("250m", "2Gi"), 1)]
    story.happens(PatchConflicted()).sees(pod(has, 2))
    says(story, DownscaleRequest(FLOOR), DownscaleResult(2, ok=True))
    assert patches_in(story) == [patched_to(FLOOR, 2)]
    story.happens(PatchFailed(Fault.VM_API, "422 limits", refused=True))
    assert patches_in(story) == [patched_to(size("250m", "2Gi"), 2)], "CPU shrinks alone"
    says(obeys(story), UpscaleNotification(size("250m", "2Gi")), UpscaleConfirmation(4))
    assert because(story).endswith("memory shrink is retried in 5 s (try 2): 422 limits")
    story.at(8.0).looks(cores=0.25)
    assert patches_in(story) == [patched_to(size("500m", "2Gi"), 3)], "and grows at once"


def test_refused_shrink_is_retried_with_backoff() -> None:
    story = loaded(settled_pod(size("500m", "1Gi")), 7.0, 0.0)
    for at, last in ((7.0, 11.0), (12.0, 21.0), (22.0, 41.0)):
        loaded(story, at, 0.0)
        assert patches_in(story) == [patched_to(FLOOR, 1)]
        story.happens(PatchFailed(Fault.AGENT, "403", refused=True))
        assert patches_in(loaded(story, last, 0.0)) == []
    loaded(story, 42.0, 0.0)
    assert patches_in(story) == [patched_to(FLOOR, 1)]
    assert obeys(story).state.vm.pauses.set_pauses == ()


@pytest.mark.parametrize(
    ("resource", "is_growth", "longest"), [("mem", False, 900.0), ("mem", True, 300.0), ("cpu", False, 300.0)]
)
def test_refused_shrinks_of_memory_become_rare(resource: Resource, is_growth: bool, longest: float) -> None:
    """Kubernetes 1.33 refuses all of them, and the trial before each evicts page cache."""
    pauses, now, waited = NO_PAUSES, Instant(0.0), 0.0
    for _ in range(12):
        pauses = pauses.refused(ResizePause(resource, is_growth, MOST.mem, "422"), now, 0.0)
        (pause,) = pauses.set_pauses
        waited, now = pause.until - now, pause.until
    assert waited == longest


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [("", []), (DEFERRED, []), (ERROR, [patched_to(size("250m", "2Gi"), 9, "mem")])],
    ids=["under way", "deferred", "failed"],
)
def test_restarted_agent_finds_a_resize(verdict: str, expected: list[PatchVm]) -> None:
    """An agent that ended in the middle of a shrink; its successor asks for what the pod may come to have."""
    story = Story().sees(pod(FLOOR, 9, actual=size("250m", "2Gi"), verdict=verdict)).looks()
    actions = story.acts()
    assert [action for action in actions if isinstance(action, PatchVm)] == expected
    (ask,) = (action for action in actions if isinstance(action, RequestPermit))
    assert ask.request.resources == size("250m", "2Gi")


def test_owner_asks_for_too_much_during_a_shrink() -> None:
    """A refused resize is reverted at once, although an unfinished shrink blocks the next one."""
    story = shrinking()
    story.sees(pod(size(4, "1Gi"), 4, actual=size("250m", "2Gi"), verdict=INFEASIBLE))
    assert patches_in(story) == [patched_to(size("250m", "2Gi"), 4, "cpu")]


def test_lower_bound_is_tried_before_memory_goes() -> None:
    """The owner lowers the pod's maximum; the kubelet could not remove memory in use either."""
    has = size("250m", "4Gi")
    story = settled_pod(has).sees(replace(pod(has, 2), bounds=Bounds(FLOOR, size(4, "2Gi")))).looks()
    assert patches_in(story) == []
    says(story, DownscaleRequest(size("250m", "2Gi")), DownscaleResult(2, ok=True))
    assert patches_in(story) == [patched_to(size("250m", "2Gi"), 2)]
