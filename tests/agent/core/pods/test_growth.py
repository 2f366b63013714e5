"""CPU and memory of a postgres pod grow separately, and resizes that the kubelet does not apply are reverted (B.7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.core.events import Fault, PatchConflicted, PatchFailed, Scraped
from agent.core.explain import explain
from protocol.pod_database import DEFERRED, ERROR, INFEASIBLE
from protocol.units import Bytes
from tests.agent.core.pods.pod_story import (
    FLOOR,
    accepts,
    because,
    loaded,
    obeys,
    patched_to,
    patches_in,
    pod,
    settled_pod,
    size,
)
from tests.agent.core.story import sample


def test_cpu_and_memory_grow_in_separate_steps() -> None:
    story = settled_pod().looks(cores=0.25)
    assert patches_in(story) == [patched_to(size("500m", "1Gi"), 1)]
    assert story.plans().because == "growing for cpu busy"
    obeys(story).at(2.0).looks(cores=0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("500m", "1280Mi"), 2)], "1.2 GiB in steps of 64Mi"
    assert story.plans().because == "growing for memory used"
    obeys(story).at(3.0).looks(cores=0.25, used=0.6)
    assert story.plans().because == "sized for cpu busy and memory used"


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
            {"resource": "cpu", "direction": "up", "because": f"{verdict}: no room", "times": 1, "retry_seconds": 4.0}
        ],
    }
    loaded(story, 6.0, 0.25, used=0.6)
    assert patches_in(story) == [patched_to(size("500m", "1280Mi"), 5)]
    accepts(story).sees(pod(size("500m", "1280Mi"), 7, actual=size("250m", "1280Mi"), verdict=verdict))
    assert patches_in(story) == [patched_to(size("250m", "1280Mi"), 7, "cpu")]
    obeys(story)
    assert because(story).endswith(f"CPU growth is retried in 10 s (try 3): {verdict}: no room")


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
