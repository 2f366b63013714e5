"""Holds pods below a memory size through their cgroups, and restores the limits (B.7).

Rules that hold here:

- It writes only to a pod's own cgroup, and only limits that throttle or reclaim: ``memory.high``, on v1 briefly
  ``memory.limit_in_bytes``. Never ``memory.max``, which kills.
- A limit is recorded on disk before it is lowered, so that the next process can restore it after a crash.
- If someone else changes the limit meanwhile, their value stays: only our own is replaced.
- On v1 the kubelet may raise the limit while it is lowered, and that write is lost. It raises the containers' limits
  next. So afterwards the pod is checked for a while, and its limit is raised to the sum of its containers' limits.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent import texts
from agent.cgroups.files import read, read_optional
from agent.cgroups.formats import byte_limit, number
from agent.cgroups.locate import BadNameError, ControlGroup, Locator
from agent.cgroups.memory import MemoryFiles

LOG: Final = logging.getLogger("reclaimer")

HEADROOM: Final = 32 * 1024**2
"""Bytes that a hold leaves above unreclaimable memory, for allocations during the hold."""

RECLAIM_STEP: Final = 8 * 1024**2
"""Bytes to reclaim per write: kernels may reclaim 50% more than requested."""

RECLAIM_STEP_V1: Final = 1024**3
"""Bytes to reclaim per call on v1, where one write blocks until all is reclaimed."""

LONGEST_RECLAIM: Final = 1.0
"""Maximum seconds that ``hold`` spends reclaiming, because a hold must end soon once the pod needs memory."""

SETTLE_CHECKS: Final = 60
"""Calls of ``settle``, one per second, for a v1 pod: kubelets resize within seconds."""

_GONE: Final = (errno.ENOENT, errno.ENODEV)
"""Errors for a cgroup that was removed before or after its file was opened."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class RefusedHoldError(Exception):
    """The hold would harm the pod, or there is no such pod."""


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A limit that was lowered from ``original`` (None: unlimited) to the last of ``sizes`` in bytes, or to the one
    before that if the write failed.
    """

    file: Path
    is_v2: bool
    original: int | None
    sizes: tuple[int, ...]

    def restore(self) -> None:
        if read(self.file, byte_limit) in self.sizes:
            none = b"max" if self.is_v2 else b"-1"
            _write(self.file, none if self.original is None else b"%d" % self.original)


class Holds:
    """The holds on pods below ``root``. ``records`` is the folder with the limits to restore; ``now`` is a clock in
    seconds.

    Not thread-safe for one pod; calls for different pods may run concurrently.
    """

    def __init__(self, root: Path, records: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._locator = Locator(root)
        self._records = records
        self._lowered: dict[str, _Lowered] = {}
        self._unsettled: dict[str, int] = {}

    def hold(self, pod_uid: str, size: int) -> int:
        """Reclaim the pod down to ``size`` bytes and return its usage; repeated calls continue.

        On v2 the pod stays there until ``release``. Raises ``RefusedHoldError``; ``OSError`` or ``ValueError`` if the
        cgroup is gone or malformed.
        """
        group = self._pod(pod_uid)
        files, size = MemoryFiles.of(group), size // _PAGE * _PAGE
        least = max(files.read().needed, _protected(group)) + HEADROOM
        if size < least:
            raise RefusedHoldError(texts.HOLD_TOO_LOW.format(size=size, least=least))
        # v1 has only the hard limit, so lower it just long enough for the kernel to reclaim.
        if not group.is_v2 and not _is_below_containers(group):
            self._unsettled[pod_uid] = SETTLE_CHECKS
        self._lower(pod_uid, group, max(size, _reclaim(group, files, size, self._now)))
        if not group.is_v2:
            self.release(pod_uid)
        return read(files.used, number)

    def release(self, pod_uid: str) -> None:
        """End the hold on a pod, if any. Raises ``OSError`` or ``ValueError`` if the limit could not be restored."""
        lowered = self._lowered.get(pod_uid)
        if lowered is None:
            return
        try:
            lowered.restore()
        except OSError as error:
            # If the pod is gone, there is nothing to restore.
            if error.errno not in _GONE:
                raise
        del self._lowered[pod_uid]
        (self._records / pod_uid).unlink(missing_ok=True)

    def unsettled(self) -> list[str]:
        """The pods to ``settle`` once per second while they are not held."""
        return list(self._unsettled)

    def settle(self, pod_uid: str) -> None:
        """Raise the pod's limit to the sum of its containers' if the kubelet's write was lost. Raises like ``hold``."""
        left = self._unsettled.pop(pod_uid, 0) - 1
        group = self._pod(pod_uid)
        if _is_below_containers(group):
            _write(_limit(group), b"%d" % _containers_limit(group))
        if left > 0:
            self._unsettled[pod_uid] = left

    def restore(self) -> list[str]:
        """Restore the limits that an earlier process left lowered; returns the pod UIDs. Raises ``OSError``."""
        self._records.mkdir(mode=0o700, exist_ok=True)
        status = self._records.lstat()
        # Another owner of the folder could control what is written and removed here.
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EPERM, texts.FOREIGN_RECORDS, str(self._records))
        restored = []
        for record in sorted(self._records.iterdir()):
            try:
                group = self._pod(record.name)
                self._lowered[record.name] = _Lowered(_limit(group), group.is_v2, *_read_record(record))
                self.release(record.name)
                restored.append(record.name)
            # The pod is gone, or this is not one of our records.
            except (RefusedHoldError, ValueError):
                record.unlink()
            except OSError as error:
                # Continue with the other pods; keep this record for the next process.
                LOG.error(texts.NOT_RELEASED, extra={"pod": record.name, "reason": str(error)})
        return restored

    def _pod(self, pod_uid: str) -> ControlGroup:
        try:
            group = self._locator.pod(pod_uid)
        except BadNameError as error:
            raise RefusedHoldError(str(error)) from None
        if group is None:
            raise RefusedHoldError(texts.NO_POD_GROUP.format(pod=pod_uid))
        return group

    def _lower(self, pod_uid: str, group: ControlGroup, size: int) -> None:
        file, before = _limit(group), self._lowered.get(pod_uid)
        now = read(file, byte_limit)
        before = before if before is not None and now in before.sizes else None
        original = now if before is None else before.original
        # A hold above the current limit would raise it.
        if original is not None and original <= size:
            self.release(pod_uid)
            return
        # Include the current size, in case the write fails.
        sizes = (size,) if before is None or now is None else (now, size)
        _write_record(self._records / pod_uid, original, sizes)
        self._lowered[pod_uid] = _Lowered(file, group.is_v2, original, sizes)
        try:
            _write(file, b"%d" % size)
        except OSError as error:
            # v1: the kernel could not reclaim enough, and left the limit unchanged.
            if error.errno != errno.EBUSY:
                raise


def _limit(group: ControlGroup) -> Path:
    return group.file("memory", "memory.high" if group.is_v2 else "memory.limit_in_bytes")


def _containers_limit(group: ControlGroup) -> int:
    """The sum of the v1 limits of the pod's containers, in bytes; unlimited ones count as 0."""
    folders = (path for path in _limit(group).parent.iterdir() if path.is_dir())
    limits = (read_optional(folder / "memory.limit_in_bytes", byte_limit) for folder in folders)
    return sum(limit or 0 for limit in limits)


def _is_below_containers(group: ControlGroup) -> bool:
    limit = read(_limit(group), byte_limit)
    return limit is not None and limit < _containers_limit(group)


def _reclaim(group: ControlGroup, files: MemoryFiles, size: int, now: Callable[[], float]) -> int:
    """Reclaim towards ``size`` with ``memory.reclaim`` and return the usage reached, 0 without that file. On v1, only
    return the usage to reclaim to in this step.

    Setting ``memory.high`` far below usage throttles each allocating task for up to two seconds at a time until all is
    reclaimed, which takes long if pages are dirty. ``memory.reclaim`` throttles no task, so the limit follows it down.
    """
    reclaim, used = group.file("memory", "memory.reclaim"), read(files.used, number)
    ends = now() + LONGEST_RECLAIM
    if not group.is_v2:
        return max(0, used - RECLAIM_STEP_V1) // _PAGE * _PAGE
    # Kernels before 5.19 lack the file.
    if used <= size or not reclaim.exists():
        return 0
    try:
        # Bounded, because the cache may fill again immediately.
        for _ in range((used - size) // RECLAIM_STEP + 1):
            _write(reclaim, b"%d" % min(used - size, RECLAIM_STEP))
            used = read(files.used, number)
            if used <= size or now() >= ends:
                break
    except OSError as error:
        # The kernel could not reclaim that much now. The next call continues.
        if error.errno != errno.EAGAIN:
            raise
    return read(files.used, number) // _PAGE * _PAGE


def _protected(group: ControlGroup) -> int:
    """Bytes protected from reclaim by v2's ``memory.min``."""
    file = group.file("memory", "memory.min")
    return 0 if not group.is_v2 else read_optional(file, number) or 0


def _write(file: Path, text: bytes) -> None:
    # No O_CREAT: the cgroup may have just been removed.
    opened = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(opened, text)
    finally:
        os.close(opened)


def _write_record(file: Path, original: int | None, sizes: tuple[int, ...]) -> None:
    # Replace it atomically: a crash must not leave a lowered limit without a record. ``restore`` drops a leftover file.
    fresh = file.with_suffix(".new")
    fresh.write_text("\n".join(map(str, ("max" if original is None else original, *sizes, ""))))
    fresh.replace(file)


def _read_record(file: Path) -> tuple[int | None, tuple[int, ...]]:
    original, *sizes = read(file, bytes).splitlines()
    return byte_limit(original), tuple(map(number, sizes))
