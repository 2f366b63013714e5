"""The permit of a postgres pod: how long it counts, and what is asked of a scheduler that knows little (B.7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.core.actions import PatchVm, RequestPermit
from agent.core.events import Fault, PatchFailed, RequestFailed, Scraped
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.vm import view
from protocol.messages import Metrics
from protocol.pod_database import DEFERRED, MEMORY_STEP, parse_pod_database
from protocol.units import Bytes
from protocol.virtual_machine import Bounds
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
from tests.agent.core.story import GIB, Story
from tests.pod_databases import pod_database


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


def test_refused_return_to_the_permit_waits() -> None:
    """A user has resized the pod above its permit, and a policy refuses to lower it again."""
    larger, permit = size(2, "1Gi"), size("500m", "1Gi")
    story = settled_pod().sees(pod(larger, 2)).looks(cores=0.25)
    assert patches_in(story, permit) == [patched_to(permit, 2)]
    story.happens(PatchFailed(Fault.VM_API, "no", refused=True))
    assert patches_in(story, permit) == []


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
