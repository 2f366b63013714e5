"""The trial before a pod's memory shrink: does less memory hurt, and would the kubelet apply it (B.7)?

Rules that hold here:

- The kubelet lowers a limit only if usage, page cache included, is below it, and its usage figure may be ``USAGE_AGE``
  old. So the pod must stay below the new limit for that long.
- The trial ends as soon as refaults or memory stalls exceed their thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.units import Bytes, Instant, Seconds

USAGE_AGE: Final = Seconds(20.0)
"""The maximum age of the kubelet's usage figure."""

RECLAIM_TIMEOUT: Final = Seconds(10.0)
"""The time within which reclaim must bring the pod below its new limit."""

STALL: Final = 0.1
"""A trial fails if this share of the time is stalled on memory, as in ``CachePolicy.stall``."""

REREAD: Final = 0.25
"""The share of the reclaimed memory that may refault, as in ``CachePolicy.turnover``."""

LEAST_REREAD: Final = Bytes(16 * 1024**2)
"""Refaults below this never fail a trial."""


@dataclass(frozen=True, slots=True)
class PodView:
    """Memory of a pod and of the resized container; a limit is None if unlimited.

    ``refaulted`` (bytes) and ``stall`` (seconds) are the container's counters, None if the kernel lacks them.
    """

    at: Instant
    pod_used: Bytes
    pod_limit: Bytes | None
    used: Bytes
    limit: Bytes | None
    refaulted: float | None = None
    stall: float | None = None


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """The result of a trial and its reason."""

    ok: bool
    reason: str


class ShrinkTrial:
    """A trial of ``target`` for a container, starting from ``first``. ``margin``: share of the target to keep free
    (0..1).

    ``reclaims`` is False without a reclaimer; then a pod that uses more fails immediately.
    """

    def __init__(self, target: Bytes, first: PodView, margin: float, *, reclaims: bool) -> None:
        self._target = target
        self._first = self._last = first
        self._reclaims = reclaims
        self._below_since: Instant | None = None
        others, keep = first.pod_used.minus_or_zero(first.used), _others_limit(first)
        # Allow for what the other containers use, up to their limits; this one must not use their unused share.
        self.size = target.scaled(1.0 - margin) + (others if keep is None else min(others, keep))
        self._pod_target = None if keep is None else target + keep

    def judge(self, now: PodView) -> TrialVerdict | None:
        """The verdict after another view; None while the trial continues."""
        harm = self.harm(now)
        if harm is not None:
            return TrialVerdict(False, harm)
        if now.limit != self._first.limit:
            return TrialVerdict(False, "its memory limit changed during the trial")
        if self._is_above(now):
            self._below_since = None
            if self._reclaims and now.at - self._first.at < RECLAIM_TIMEOUT:
                return None
            used = f"the pod still uses {_mib(now.pod_used)}, its container {_mib(now.used)} of it"
            return TrialVerdict(False, f"{used}, page cache included")
        self._below_since = self._below_since or now.at
        if now.at - self._below_since >= USAGE_AGE:
            return TrialVerdict(True, f"the pod stayed below that for {USAGE_AGE:.0f} s")
        return None

    def harm(self, now: PodView) -> str | None:
        """The harm done by less memory, as text; None if there is none."""
        before, self._last = self._last, now
        reread, waited = _rise(self._first.refaulted, now.refaulted), _rise(before.stall, now.stall)
        taken = self._first.pod_used.minus_or_zero(self.size)
        if reread > max(LEAST_REREAD, taken.scaled(REREAD)).value:
            return f"refaulted {_mib(Bytes(int(reread)))} after {_mib(taken)} were reclaimed"
        if waited >= STALL * max(1.0, now.at - before.at):
            return "its tasks stall on memory"
        return None

    def is_in_force(self, now: PodView) -> bool:
        """Return True once the container's limit is at most the target."""
        return now.limit is not None and now.limit <= self._target

    def _is_above(self, now: PodView) -> bool:
        is_pod_above = self._pod_target is not None and now.pod_used > self._pod_target
        return is_pod_above or now.used > self._target


def _others_limit(view: PodView) -> Bytes | None:
    """The memory limit of the pod's other containers; None if unlimited."""
    if view.pod_limit is None or view.limit is None:
        return None
    return view.pod_limit.minus_or_zero(view.limit)


def _mib(amount: Bytes) -> str:
    return f"{amount.value >> 20} MiB"


def _rise(before: float | None, now: float | None) -> float:
    return 0.0 if before is None or now is None else now - before
