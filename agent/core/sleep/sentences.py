"""Sleep of a VM in ``/explain``."""

from __future__ import annotations

from typing import Final

from agent.core.guest import GuestSample
from agent.core.policy import SleepPolicy
from agent.core.sleep.obstacles import SHOWN
from agent.core.sleep.sleep_side import SleepSide
from agent.core.vm import Vm
from protocol.kubernetes.objects import Json
from protocol.units import Instant

EARLY: Final = "; ordered early, because its node is short of room"


def sleep_state(  # noqa: PLR0913, PLR0917 - the complete state
    sleep: SleepSide, policy: SleepPolicy, vm: Vm, sample: GuestSample | None, obstacles: tuple[str, ...], now: Instant
) -> Json:
    """The field ``sleep`` of ``/explain``; ``obstacles`` are the reasons not to order ``vm`` to sleep."""
    report, wake = vm.sleep, sleep.wake
    return {
        "because": _because(vm, obstacles) + (EARLY if sleep.is_early else ""),
        "after_seconds": policy.after or None,
        "quiet_seconds": None if sample is None else sample.quiet,
        "awake": [] if sample is None else list(sample.awake),
        "state": None if report.state is None else report.state.value,
        "since": report.since or None,
        "message": report.message[:SHOWN] or None,
        "sessions": report.sessions,
        "woken_by": None if wake is None else wake.by[:SHOWN],
        "woken_seconds": None if wake is None else round(now - wake.at, 3),
        "woken_for_nothing": wake is not None and wake.is_unused,
    }


def _because(vm: Vm, obstacles: tuple[str, ...]) -> str:
    if vm.is_asleep:
        open_now = f", {vm.sleep.sessions} sessions open" if vm.sleep.sessions else ""
        return f"asleep{f' since {vm.sleep.since}' if vm.sleep.since else ''}{open_now}"
    if vm.is_waking or vm.is_starting:
        return f"waking: {vm.sleep.message[:SHOWN]}" if vm.sleep.message else "waking"
    return f"awake: {'; '.join(obstacles)}" if obstacles else "about to be ordered to sleep"
