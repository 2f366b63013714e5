"""Reasons not to order a VM to sleep, from its policy, its object and its guest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.core.guest import GuestSample
from agent.core.sleep.sleep_side import SleepSide
from agent.core.vm import RUNNING, Vm
from protocol.units import Instant, Seconds

OFF: Final = "its policy does not set sleep.after"
SHOWN: Final = 200
"""Maximum characters shown of a controller's message."""


def obstacles(sleep: SleepSide, after: Seconds, vm: Vm, sample: GuestSample | None, now: Instant) -> Iterator[str]:
    """Yield each obstacle as text. ``sample`` is the guest's last sample, None if stale. The database must have been
    idle for ``after`` (0: sleep is off).
    """
    if not after:
        yield OFF
        return
    if vm.never_sleeps:
        yield vm.never_sleeps
    if vm.phase != RUNNING or not vm.enabled:
        yield f"its phase is {vm.phase or 'unknown'}" if vm.enabled else "its opt-in label is missing"
    # Without a resourceVersion, a concurrent change would not make the order conflict.
    if not vm.version:
        yield "its object has no resourceVersion"
    if sleep.window is not None:
        yield f"kept awake by the window {sleep.window}"
    elif sleep.spread_until is not None and now < sleep.spread_until:
        yield f"next order in {sleep.spread_until - now:.0f} s, so that not all VMs sleep at once"
    yield from _of_guest(sleep, after, sample, now)
    yield from _of_orders(sleep, vm, now)


def _of_guest(sleep: SleepSide, after: Seconds, sample: GuestSample | None, now: Instant) -> Iterator[str]:
    if sample is None:
        yield "no recent metrics from its guest"
    elif sample.quiet is None:
        yield "its guest does not report database idle time"
    else:
        if sample.awake:
            yield f"its database is busy: {', '.join(sample.awake)}"
        quiet = sleep.quiet_for(sample.quiet, after, now)
        if quiet < after:
            yield f"quiet for {quiet:.0f} s of {after:.0f} s"


def _of_orders(sleep: SleepSide, vm: Vm, now: Instant) -> Iterator[str]:
    if sleep.ordering is not None:
        yield "the order is being written"
    elif vm.is_ordered_to_sleep:
        yield "ordered to sleep; waiting for neonvm-controller"
    if sleep.retry_at is not None and now < sleep.retry_at:
        yield f"writing the order failed; retrying in {sleep.retry_at - now:.0f} s"
    refusal = sleep.refusal
    if refusal is not None and now < refusal.retry_at:
        yield f"refused to sleep: {refusal.because[:SHOWN]}; retrying in {refusal.retry_at - now:.0f} s"
