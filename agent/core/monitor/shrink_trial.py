"""The trial of less memory for a pod, before its limit is lowered: does it harm, and would the kubelet do it (B.7)?

Rules that hold here:

- The kubelet lowers a limit only if the pod uses less, by a number that may be as old as ``AGE``, and page cache counts
  as used. So the pod must stay below its new limit for that long.
- At the first harm the trial is over: memory that is read again, or tasks that wait for memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.units import Bytes, Instant, Seconds

AGE: Final = Seconds(20.0)
"""The greatest age of the number by which the kubelet judges a pod."""

RECLAIMED: Final = Seconds(10.0)
"""The time in which the pod must have come below its new limit."""

STALL: Final = 0.1
"""Waiting for memory for this share of the time is harm, as in ``CachePolicy.stall``."""

REREAD: Final = 0.25
"""Of what a shrink takes from a pod, this share may be read again, as in ``CachePolicy.turnover``."""

LEAST_REREAD: Final = Bytes(16 * 1024**2)
"""Rereading of less is no harm, however little was taken."""


@dataclass(frozen=True, slots=True)
class PodView:
    """The memory of a pod and of the container that is resized; limits are None if there is none.

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
    """The end of a trial, and the reason."""

    ok: bool
    reason: str


class ShrinkTrial:
    """Tries ``target`` on a pod that is seen as ``first``. ``margin`` is the share of it that stays free (0..1).

    ``reclaims`` is False if nothing can be reclaimed, so that a pod that uses more is not waited for.
    """

    def __init__(self, target: Bytes, first: PodView, margin: float, *, reclaims: bool) -> None:
        self._target = target
        self._first = self._last = first
        self._reclaims = reclaims
        self._below_since: Instant | None = None
        others, keep = first.pod_used.minus_or_zero(first.used), _others_limit(first)
        # What the other containers may have is theirs; what they do not use is no room for this one.
        self.size = target.scaled(1.0 - margin) + (others if keep is None else min(others, keep))
        self._pod_target = None if keep is None else target + keep

    def judge(self, now: PodView) -> TrialVerdict | None:
        """The verdict after one more view; None as long as the trial goes on."""
        harm = self.harm(now)
        if harm is not None:
            return TrialVerdict(False, harm)
        if now.limit != self._first.limit:
            return TrialVerdict(False, "its limit was changed meanwhile")
        if self._is_above(now):
            self._below_since = None
            if self._reclaims and now.at - self._first.at < RECLAIMED:
                return None
            used = f"the pod uses {_mib(now.pod_used)}, its container {_mib(now.used)} of it"
            return TrialVerdict(False, f"{used}, page cache included")
        self._below_since = self._below_since or now.at
        if now.at - self._below_since >= AGE:
            return TrialVerdict(True, f"the pod has stayed below that for {AGE:.0f} s")
        return None

    def harm(self, now: PodView) -> str | None:
        """The harm that less memory has done by ``now``; None if there is none."""
        before, self._last = self._last, now
        reread, waited = _rise(self._first.refaulted, now.refaulted), _rise(before.stall, now.stall)
        taken = self._first.pod_used.minus_or_zero(self.size)
        if reread > max(LEAST_REREAD, taken.scaled(REREAD)).value:
            return f"it has read {_mib(Bytes(int(reread)))} again, after {_mib(taken)} were taken"
        if waited >= STALL * max(1.0, now.at - before.at):
            return "its tasks wait for memory"
        return None

    def is_in_force(self, now: PodView) -> bool:
        """Return True once the container's limit is the target or less."""
        return now.limit is not None and now.limit <= self._target

    def _is_above(self, now: PodView) -> bool:
        is_pod_above = self._pod_target is not None and now.pod_used > self._pod_target
        return is_pod_above or now.used > self._target


def _others_limit(view: PodView) -> Bytes | None:
    """The memory that the pod's other containers may have; None if nothing limits them."""
    if view.pod_limit is None or view.limit is None:
        return None
    return view.pod_limit.minus_or_zero(view.limit)


def _mib(amount: Bytes) -> str:
    return f"{amount.value >> 20} MiB"


def _rise(before: float | None, now: float | None) -> float:
    return 0.0 if before is None or now is None else now - before
