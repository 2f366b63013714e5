"""A postgres in a pod: CPU and memory change separately, and resizes that the kubelet does not apply are reverted
(B.7).
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.core.actions import PatchVm, RequestPermit
from agent.core.events import (
    Fault,
    MonitorAnswered,
    MonitorJoined,
    MonitorLost,
    PatchConflicted,
    Patched,
    PatchFailed,
    RequestFailed,
    Scraped,
    Started,
)
from agent.core.explain import explain
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.pods.pauses import NO_PAUSES, ResizePause, Resource
from agent.core.policy import Policy, Timing
from agent.core.vm import Vm, view
from protocol.guest.monitor_messages import DownscaleRequest, DownscaleResult, UpscaleConfirmation, UpscaleNotification
from protocol.messages import Metrics
from protocol.pod_database import DEFERRED, ERROR, INFEASIBLE, MEMORY_STEP, ResizeObjection, parse_pod_database
from protocol.units import Bytes, Instant, Resources, Seconds
from protocol.virtual_machine import Bounds
from tests.agent.core.story import GIB, POLICY, Story, holding, sample
from tests.pod_databases import pod_database


def size(cpu: int | str, mem: str) -> Resources:
    return Resources.parse(cpu, mem)


FLOOR, MOST = size("250m", "1Gi"), size(4, "8Gi")


def pod(use: Resources, version: int = 1, *, actual: Resources | None = None, verdict: str = "") -> Vm:
    """A pod's object; with a ``verdict``, the kubelet objects to ``use``."""
    objection = ResizeObjection(verdict, "no room") if verdict else None
    return Vm(Bounds(FLOOR, MOST), use, actual or use, MEMORY_STEP, version, is_pod=True, objection=objection)


def settled_pod(use: Resources = FLOOR, *, is_frozen: bool = False, policy: Policy = POLICY) -> Story:
    """An agent at one second that knows its pod, its permit, one sample of metrics, and a reclaimer."""
    story = Story(policy).sees(pod(use)).looks()
    story.acts()
    story.answers(use, migrate=is_frozen).happens(MonitorJoined(2))
    return says(story, UpscaleNotification(use), UpscaleConfirmation(2)).at(1.0)


def says(
    story: Story, message: UpscaleNotification | DownscaleRequest, answer: UpscaleConfirmation | DownscaleResult | None
) -> Story:
    """The agent says ``message`` to the reclaimer, and is answered (None: not yet)."""
    assert story.plans().message == message
    story.happens(Started(message))
    return story if answer is None else story.happens(MonitorAnswered(answer))


def patched_to(target: Resources, base: int, reverts: str | None = None) -> PatchVm:
    return PatchVm(target, base, MEMORY_STEP, reverts)  # type: ignore[arg-type]


def patches_in(story: Story, permit: Resources = MOST) -> list[PatchVm]:
    """The patches that the agent sends now, once it was granted all that it asks for within ``permit``."""
    patches: list[PatchVm] = []
    while actions := story.acts():
        for action in actions:
            if isinstance(action, RequestPermit):
                story.answers(action.request.resources.at_most(permit))
            elif isinstance(action, PatchVm):
                patches.append(action)
    return patches


def obeys(story: Story) -> Story:
    """The API server accepts the patch in flight, and the kubelet applies it."""
    accepts(story)
    assert story.state.vm.observed is not None
    return story.sees(replace(story.state.vm.observed, actual=story.state.vm.observed.use))


def accepts(story: Story) -> Story:
    """The API server accepts the patch in flight; the kubelet has not handled it yet."""
    seen, patch = story.state.vm.observed, story.state.vm.patching
    assert seen is not None
    assert patch is not None
    return story.happens(Patched(replace(seen, use=patch.target, version=seen.version + 1, objection=None)))


def because(story: Story) -> str:
    return explain(story.state, "default/pod/pg-1", story.instant).because


def loaded(story: Story, at: float, cores: float, used: float = 0.0) -> Story:
    """Sample a load each second until ``at``."""
    while story.now < at:
        story.at(story.now + 1.0).looks(cores=cores, used=used)
    return story


def test_cpu_and_memory_grow_in_separate_steps() -> None:
    story = settled_pod().looks(cores=0.25)
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 1)]
    assert story.plans().because == "growing for cpu busy"
    obeys(story).at(2.0).looks(cores=0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("500m", "1280Mi"), 2)], "1.2 GiB in steps of 64Mi"
    assert story.plans().because == "growing for memory used"
    obeys(story).at(3.0).looks(cores=0.25, used=0.6)
    assert story.plans().because == "sized for cpu busy and memory used"


def test_permit_of_a_pod_ends_without_an_answer() -> None:
    """Nothing is stored for a pod, so a new scheduler does not know the permits of the last one."""
    story = settled_pod().looks(cores=0.25)
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 1)]
    obeys(story).happens(RequestFailed(Fault.NETWORK, "no scheduler"))
    assert loaded(story, 18.0, cores=0.25).state.ceiling == size("500m", "1Gi")
    loaded(story, 19.0, cores=0.25)
    assert (story.state.ceiling, story.state.scheduler.permit) == (None, None)
    (asks,) = story.acts()
    assert isinstance(asks, RequestPermit)
    assert (asks.request.resources, asks.request.last_permit) == (size("500m", "1Gi"), None)


def test_lapsed_permit_is_not_used_between_two_scrapes() -> None:
    """A retry may be due before the next event, at which the permit is dropped."""
    story = settled_pod().looks(cores=0.25)
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 1)]
    story.at(13.5).happens(PatchFailed(Fault.NETWORK, "no response", refused=False))
    loaded(story, 17.5, cores=0.25)
    assert story.at(18.5).plans().actions[0] == patched_to(size("500m", "1Gi"), 1)
    (asks,) = story.at(19.0).plans().actions
    assert isinstance(asks, RequestPermit)
    assert asks.request.last_permit is None


def test_request_unknown_to_new_scheduler_is_withdrawn() -> None:
    """It has no room for the memory that the kubelet defers, and must be able to say so and grant CPU."""
    story = settled_pod().looks(cores=0.25, used=0.9)
    assert patches_in(story) == [patched_to(size("500m", "1856Mi"), 1)]
    accepts(story).sees(pod(size("500m", "1856Mi"), 3, actual=size("500m", "1Gi"), verdict=DEFERRED))
    loaded(story, 20.0, cores=0.25, used=0.9)
    (asks,) = story.acts()
    assert isinstance(asks, RequestPermit)
    assert asks.request.resources == size("500m", "1856Mi")
    story.answers(size("500m", "1Gi"))
    assert (story.state.scheduler.rejected, story.state.ceiling) == (0, size("500m", "1Gi"))
    assert patches_in(story, size("500m", "1Gi")) == [patched_to(size("500m", "1Gi"), 3)]


def test_permit_of_a_vm_stays_without_an_answer() -> None:
    story = Story().sees(replace(pod(FLOOR), is_pod=False)).looks()
    story.acts()
    loaded(story.answers(FLOOR), 60.0, cores=0.01)
    assert story.state.ceiling == FLOOR


def test_pod_of_odd_size_is_left_alone() -> None:
    """The floor is the owner's size, whole steps or not; the scheduler counts in whole slots and denies nothing."""
    odd = size("100m", "500Mi")
    seen = replace(pod(odd), bounds=Bounds(odd, size(4, "8000Mi")))
    story = Story().sees(seen).looks()
    whole, actions = size("100m", "448Mi"), story.acts()
    for second in range(1, 9):
        story.answers(whole).at(float(second)).looks(cores=0.01)
        actions += story.acts()
    assert {action.request.resources for action in actions if isinstance(action, RequestPermit)} == {whole}
    assert [action for action in actions if isinstance(action, PatchVm)] == []
    assert (story.state.scheduler.rejected, story.state.scheduler.denial) == (0, None)


@pytest.mark.parametrize(
    ("requests", "low", "high", "bounds"),
    [
        ("500Mi", "500Mi", "1000Mi", ("500Mi", "960Mi")),
        ("512Mi", "500Mi", "1000Mi", ("512Mi", "960Mi")),
        ("500Mi", "500Mi", "510Mi", ("500Mi", "500Mi")),
        ("1Gi", "1Gi", "8Gi", ("1Gi", "8Gi")),
    ],
)
def test_bounds_of_a_pod_in_whole_slots(requests: str, low: str, high: str, bounds: tuple[str, str]) -> None:
    within = f'{{"min": {{"cpu": 1, "mem": "{low}"}}, "max": {{"cpu": 4, "mem": "{high}"}}}}'
    seen = view(parse_pod_database(pod_database(bounds=within, memory=requests)), "pg-1")
    assert (str(seen.bounds.min.mem), str(seen.bounds.max.mem)) == bounds
    assert (seen.is_pod, seen.ours, seen.resizable, seen.slot_size) == (True, True, True, MEMORY_STEP)


def test_deferred_wish_waits_for_room() -> None:
    story = settled_pod().looks(cores=0.25)
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 1)]
    wish = pod(size("500m", "1Gi"), 3, actual=FLOOR, verdict=DEFERRED)
    accepts(story).sees(wish)
    loaded(story, 20.0, 0.25)
    assert patches_in(story) == []
    assert story.state.scheduler.permit == size("500m", "1Gi"), "so the ledger keeps the room"
    assert because(story) == (
        "sized for cpu busy and memory used; the kubelet defers 500m cpu, 1Gi until the node has room: no room"
    )
    story.sees(pod(size("500m", "1Gi"), 4))
    assert because(story) == "sized for cpu busy and memory used"


def test_deferred_wish_ends_with_its_need() -> None:
    story = settled_pod().looks(cores=0.25)
    patches_in(story)
    accepts(story).sees(pod(size("500m", "1Gi"), 3, actual=FLOOR, verdict=DEFERRED))
    loaded(story, 5.0, 0.0)
    assert patches_in(story) == []
    loaded(story, 7.0, 0.0)
    assert patches_in(story) == [patched_to(FLOOR, 3)]
    assert obeys(story).state.vm.pauses.set_pauses == ()


def test_deferred_memory_makes_way_for_cpu() -> None:
    """A deferred memory resize is reverted when CPU is needed, and requested again seconds later."""
    story = settled_pod().looks(used=0.6)
    wish = size("250m", "1280Mi")
    assert patches_in(story) == [patched_to(wish, 1)]
    accepts(story).sees(pod(wish, 3, actual=FLOOR, verdict=DEFERRED))
    story.at(2.0).looks(cores=0.25, used=0.6)
    assert patches_in(story) == [patched_to(FLOOR, 3, "mem")], "one after the other"
    assert patches_in(obeys(story)) == [patched_to(size("500m", "1Gi"), 4)]
    obeys(story)
    assert because(story).endswith("memory growth is retried in 5 s (try 2): Deferred: no room")
    loaded(story, 6.0, 0.25, used=0.6)
    assert patches_in(story) == []
    loaded(story, 7.0, 0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("500m", "1280Mi"), 5)]
    assert because(story) == "growing for memory used", "a pause that is over is no news"


def test_two_deferred_wishes_are_tried_one_by_one() -> None:
    story = settled_pod().looks(cores=0.25, used=0.6)
    both = size("500m", "1280Mi")
    assert patches_in(story) == [patched_to(both, 1)]
    accepts(story).sees(pod(both, 3, actual=FLOOR, verdict=DEFERRED))
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 3, "mem")]
    accepts(story).sees(pod(size("500m", "1Gi"), 5, actual=FLOOR, verdict=DEFERRED))
    loaded(story, 5.0, 0.25, used=0.6)
    assert patches_in(story) == [], "CPU waits"
    loaded(story, 6.0, 0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("250m", "1280Mi"), 5, "cpu")], "the turn of memory"


@pytest.mark.parametrize("verdict", [INFEASIBLE, ERROR])
def test_infeasible_resize_is_withdrawn_at_once(verdict: str) -> None:
    story = settled_pod().looks(cores=0.25)
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 1)]
    accepts(story).sees(pod(size("500m", "1Gi"), 3, actual=FLOOR, verdict=verdict))
    assert because(story).endswith(f"the kubelet did not resize the pod to 500m cpu, 1Gi: {verdict}: no room")
    assert patches_in(story) == [patched_to(FLOOR, 3, "cpu")]
    obeys(story)
    assert patches_in(story) == []
    assert story.state.scheduler.permit == FLOOR, "what cannot be used is left to others"
    story.at(2.0).looks(cores=0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("250m", "1280Mi"), 4)], "memory is not held up"
    obeys(story)
    found = explain(story.state, "default/pod/pg-1", story.instant)
    assert found.resize == {
        "objection": None,
        "pauses": [
            {
                "resource": "cpu",
                "direction": "up",
                "because": f"{verdict}: no room",
                "times": 1,
                "retry_seconds": 4.0,
            }
        ],
    }
    loaded(story, 6.0, 0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("500m", "1280Mi"), 5)]
    accepts(story).sees(pod(size("500m", "1280Mi"), 7, actual=size("250m", "1280Mi"), verdict=verdict))
    assert patches_in(story) == [patched_to(size("250m", "1280Mi"), 7, "cpu")]
    obeys(story)
    assert because(story).endswith(f"CPU growth is retried in 10 s (try 3): {verdict}: no room")


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


@pytest.mark.parametrize(("limit", "grown"), [(None, "1280Mi"), ("1Gi", "1280Mi"), ("4Gi", "5Gi")])
def test_killed_pod_gets_more_than_its_limit(limit: str | None, grown: str) -> None:
    """A higher request alone changes nothing: the limit stays until the request outgrows it."""
    story = settled_pod()
    story.sees(replace(pod(FLOOR, 2), mem_limit=None if limit is None else Bytes.parse(limit)))
    for second, kills in ((2.0, 0.0), (3.0, 1.0)):
        story.at(second).happens(Scraped(replace(sample(0.0, 0.0, 0.2), oom_kills=kills)))
    assert patches_in(story) == [patched_to(size("250m", grown), 2)]


@pytest.mark.parametrize(("before", "after", "grown"), [("1Gi", "512Mi", "1280Mi"), ("3Gi", "512Mi", "5Gi")])
def test_kill_by_node_pressure_ignores_the_limit(before: str, after: str, grown: str) -> None:
    """A limit of many times the request would make each killed pod of a short node ask for its maximum."""
    story = settled_pod()
    story.sees(replace(pod(FLOOR, 2), mem_limit=Bytes.parse("4Gi")))
    for second, kills, used in ((2.0, 0.0, before), (3.0, 1.0, after)):
        free = Bytes.parse("4Gi") - Bytes.parse(used)
        page = replace(sample(0.0, 0.0, 0.2), oom_kills=kills, mem_total=Bytes.parse("4Gi"), mem_free=free)
        story.at(second).happens(Scraped(replace(page, mem_available=page.mem_total)))
    assert patches_in(story) == [patched_to(size("250m", grown), 2)]


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


def test_quota_for_memory_does_not_hold_up_cpu() -> None:
    story = settled_pod().looks(cores=0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("500m", "1280Mi"), 1)]
    story.happens(PatchFailed(Fault.VM_API, "exceeded quota", refused=True))
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 1)]
    obeys(story)
    assert patches_in(story) == []
    assert story.state.scheduler.permit == size("500m", "1Gi")
    assert because(story).endswith("memory growth is retried in 5 s (try 2): exceeded quota")
    loaded(story, 6.0, 0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("500m", "1280Mi"), 2)]
    story.happens(PatchFailed(Fault.VM_API, "exceeded quota", refused=True))
    assert because(story).endswith("memory growth is retried in 10 s (try 3): exceeded quota")


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


def test_refused_return_to_the_permit_waits() -> None:
    """A user has resized the pod above its permit, and a policy refuses to lower it again."""
    larger, permit = size(2, "1Gi"), size("500m", "1Gi")
    story = settled_pod().sees(pod(larger, 2)).looks(cores=0.25)
    assert patches_in(story, permit) == [patched_to(permit, 2)]
    story.happens(PatchFailed(Fault.VM_API, "no", refused=True))
    assert patches_in(story, permit) == []


def test_refused_revert_is_repeated() -> None:
    story = settled_pod().looks(cores=0.25)
    patches_in(story)
    accepts(story).sees(pod(size("500m", "1Gi"), 3, actual=FLOOR, verdict=INFEASIBLE))
    assert patches_in(story) == [patched_to(FLOOR, 3, "cpu")]
    story.happens(PatchFailed(Fault.VM_API, "no", refused=True))
    assert patches_in(loaded(story, 5.0, 0.25)) == []
    assert patches_in(loaded(story, 6.0, 0.25)) == [patched_to(FLOOR, 3, "cpu")]


def test_repeated_withdrawal_is_one_refusal() -> None:
    """The kubelet's own write to the status gets in between."""
    story = settled_pod().looks(cores=0.25)
    patches_in(story)
    wish = pod(size("500m", "1Gi"), 3, actual=FLOOR, verdict=INFEASIBLE)
    accepts(story).sees(wish)
    assert patches_in(story) == [patched_to(FLOOR, 3, "cpu")]
    story.happens(PatchConflicted()).sees(replace(wish, version=4))
    assert patches_in(story) == [patched_to(FLOOR, 4, "cpu")]
    (pause,) = story.state.vm.pauses.set_pauses
    assert (pause.count, pause.until) == (1, 6.0)


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


def test_owner_edits_the_requests_meanwhile() -> None:
    """The operator changes the pod's size while a resize by the agent is pending: the agent continues from the new
    size.
    """
    story = settled_pod().looks(cores=0.25)
    patches_in(story)
    accepts(story).sees(pod(size("500m", "1Gi"), 3, actual=FLOOR, verdict=DEFERRED)).sees(pod(FLOOR, 4))
    story.at(2.0).looks(cores=0.25)
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 4)]
    larger = size(2, "4Gi")
    obeys(story).sees(pod(larger, 6))
    assert patches_in(story, permit=size("500m", "1Gi")) == [patched_to(size("500m", "4Gi"), 6)]
    assert story.state.vm.pauses.set_pauses == ()


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


def test_pod_that_the_scheduler_refuses_keeps_its_size() -> None:
    """An autoscaler or operator that sizes the pod as well would answer a smaller size with a restart."""
    has, asked = size("500m", "2Gi"), list[float]()
    story = settled_pod(has, is_frozen=True)
    while story.now < 30.0:
        for action in loaded(story, story.now + 1.0, 0.0).acts():
            assert isinstance(action, RequestPermit)
            assert (action.request.resources, action.request.needs) == (has, None)
            asked.append(story.now)
            story.answers(has, migrate=True)
    # Soon, since a new scheduler refuses pods for a moment; then as rarely as others, since it may last forever.
    assert asked == [2.0, 6.0, 13.0, 20.0, 27.0]
    assert story.plans().message is None, "and nothing is tried"
    assert because(story) == "frozen: the scheduler forbids resizing this pod and explains why"
    assert len(loaded(story, 34.0, 0.0).acts()) == 1
    story.answers(has)
    assert patches_in(story.looks()) == [patched_to(size("250m", "2Gi"), 1)]


def test_busy_cores_stand_for_the_load() -> None:
    """A control group has no load average."""
    story = settled_pod()
    for second in (1.0, 2.0):
        page = GuestSample(cpus={"all": CpuSeconds(0.1 * second)}, mem_total=Bytes(2 * GIB), mem_available=Bytes(GIB))
        story.at(second).happens(Scraped(page))
    asks = [action.request for action in story.at(8.0).acts() if isinstance(action, RequestPermit)]
    assert [request.metrics for request in asks] == [Metrics(0.1, None, Bytes(GIB))]
