"""A postgres pod and its agent, in stories: what the API shows, the reclaimer answers, and the kubelet does."""

from __future__ import annotations

from msgspec.structs import replace

from agent.core.actions import PatchVm, RequestPermit
from agent.core.events import MonitorAnswered, MonitorJoined, Patched, Started
from agent.core.explain import explain
from agent.core.policy import Policy
from agent.core.vm import Vm
from protocol.guest.monitor_messages import DownscaleRequest, DownscaleResult, UpscaleConfirmation, UpscaleNotification
from protocol.pod_database import MEMORY_STEP, ResizeObjection
from protocol.units import Resources
from protocol.virtual_machine import Bounds
from tests.agent.core.story import POLICY, Story


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
