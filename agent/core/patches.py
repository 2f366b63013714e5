"""Applies views of the VM's object, and patches, to the state (S4.2). Part of ``advance``."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from agent.core.actions import PatchVm
from agent.core.events import Fault, PatchFailed
from agent.core.pods.pauses import ResizePause, amount
from agent.core.pods.requests import lowered_resource, raised_resource
from agent.core.policy import LONGEST_PATCH, REFUSED_GROWTH_BACKOFF, VM_API_BACKOFF
from agent.core.state import State, VmSide, failed_again
from agent.core.vm import Vm
from protocol.units import Instant


def adopt(state: State, vm: Vm, now: Instant) -> None:
    """Adopt a newer view; ignore a stale one."""
    vm_state = state.vm
    # Reads and watches can overtake each other.
    if vm_state.observed is not None and not vm.follows(vm_state.observed.version - 1):
        return
    _follow_sleep(state, vm_state.observed, vm, now)
    if vm_state.observed is not None and not vm.sleeps and not vm_state.observed.actual.within(vm.actual):
        vm_state.shrink_seen_at = now
    # An agreement covers one shrink from the memory at that time.
    if vm_state.observed is not None and vm.has_mem != vm_state.observed.has_mem:
        state.monitor.agreed = None
    vm_state.observed, vm_state.pauses = vm, vm_state.pauses.after(vm)
    # A VM without the opt-in label has no permit.
    if not vm.enabled:
        state.scheduler.forget_permit()
    # A version newer than the base proves that the patch was applied or no longer can be. After ``settles_at``, so does
    # any version.
    if vm_state.unsettled is not None and (vm.follows(vm_state.unsettled.base) or now >= vm_state.settles_at):
        vm_state.unsettled = None
    if vm_state.stale_at is not None and vm.follows(vm_state.stale_at):
        vm_state.stale_at = vm_state.retry_at = None


def _follow_sleep(state: State, before: Vm | None, vm: Vm, now: Instant) -> None:
    state.sleep.update(before, vm, state.policy.sleep, now)
    if not vm.sleeps:
        if before is not None and before.sleeps:
            # A running VM has its permit; a denial from before its wake must not shrink it.
            state.scheduler.denial = None
        state.guest.wake(now)
        return
    state.guest.fall_asleep(now)
    # Losing the monitor of a suspended guest is not a failure.
    state.monitor.leave(now)
    state.monitor_failure = None


def restored(state: State, vm: Vm, now: Instant) -> None:
    """Restart versions at ``vm`` after the store was restored from a backup.

    Patches based on a later version can no longer take effect, and a permit stored at a later version is lost.
    """
    state.scheduler.forget_permit()
    vm_state = state.vm
    vm_state.unsettled = vm_state.stale_at = None
    if vm_state.observed is not None:
        vm_state.observed = structs.replace(vm_state.observed, version=vm.version)
    adopt(state, vm, now)


def sent_patch(state: State, patch: PatchVm, now: Instant, jitter: float) -> None:
    """Record that ``patch`` was sent."""
    vm_state = state.vm
    vm_state.patching = patch
    if vm_state.observed is not None and patch.reverts is not None:
        vm_state.pauses = vm_state.pauses.objected(patch.reverts, vm_state.observed, now, jitter)
    if vm_state.observed is not None and not vm_state.observed.use.within(patch.target):
        # Count from the order, not from its outcome: the guest may start to shrink before the answer arrives.
        vm_state.shrunk_at = now
        state.scheduler.give_back.note_shrink(now)


def patched(state: State, vm: Vm, now: Instant) -> None:
    """Record that the patch took effect, with the object as it is now."""
    vm_state = state.vm
    # A successful patch ends every backoff, even the one after a refused growth.
    vm_state.patching = vm_state.failure = vm_state.retry_at = vm_state.grows_from = None
    vm_state.refused = 0
    adopt(state, vm, now)


def patch_conflicted(state: State, reason: str, now: Instant, jitter: float) -> None:
    """Record that the patch had no effect, usually because the object had changed."""
    vm_state = state.vm
    patch, vm_state.patching = vm_state.patching, None
    # A conflict at an older version says nothing about the newest view.
    if patch is None or not _is_newest(vm_state.observed, patch):
        return
    # Without a newer view since the last conflict, the conflict concerns another object, such as a quota.
    if vm_state.stale_at == patch.base:
        vm_state.failure = failed_again(vm_state.failure, Fault.VM_API, reason, now)
    vm_state.stale_at, vm_state.retry_at = patch.base, Instant(now + VM_API_BACKOFF.delay(1, jitter))


def _is_newest(latest: Vm | None, patch: PatchVm) -> bool:
    """Return True if ``patch`` is based on the newest view, and that view has a version."""
    return latest is not None and not latest.follows(patch.base) and latest.version == patch.base


def patch_failed(state: State, event: PatchFailed, now: Instant, jitter: float) -> None:
    """Record that the patch failed, or that its outcome is unknown."""
    vm_state = state.vm
    patch, vm_state.patching = vm_state.patching, None
    vm_state.failure = failed_again(vm_state.failure, event.fault, event.reason, now)
    if event.refused and patch is not None and vm_state.observed is not None:
        if _pause_resource(vm_state, vm_state.observed, patch, event.reason, now, jitter):
            return
        # Only a refused growth delays further growth; a refused shrink is retried.
        if not vm_state.observed.is_pod and not patch.target.within(vm_state.observed.use):
            vm_state.refused += 1
            vm_state.grows_from = Instant(now + REFUSED_GROWTH_BACKOFF.delay(vm_state.refused, jitter))
    vm_state.retry_at = Instant(now + VM_API_BACKOFF.delay(vm_state.failure.count, jitter))
    if patch is None or event.refused or not _is_newest(vm_state.observed, patch):
        return
    # Any of several patches with unknown outcomes may be in effect, so assume the largest.
    earlier = patch.target if vm_state.unsettled is None else vm_state.unsettled.target
    vm_state.unsettled = replace(patch, target=patch.target.at_least(earlier))
    vm_state.settles_at = Instant(now + LONGEST_PATCH)


def _pause_resource(vm_state: VmSide, pod: Vm, patch: PatchVm, because: str, now: Instant, jitter: float) -> bool:  # noqa: PLR0913, PLR0917
    """Pause the resource of a pod that ``patch`` would have raised, or else lowered. Return True if there is one; then
    the next patch may follow immediately.
    """
    grown = raised_resource(pod, patch.target)
    # Pauses must not delay a revert, which is repeated.
    resource = grown or (None if patch.reverts else lowered_resource(pod, patch.target))
    if resource is None or not pod.is_pod:
        return False
    pause = ResizePause(resource, grown is not None, amount(pod.actual, resource), because)
    vm_state.pauses = vm_state.pauses.refused(pause, now, jitter)
    return True
