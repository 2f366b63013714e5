"""Holds on the memory of pods, written into their control groups, and taken back (B.7).

Rules that hold here:

- Only the group of a pod is ever written, and only a limit that throttles or reclaims (``memory.high``; in version 1
  ``memory.limit_in_bytes``, for a moment), never one that kills (``memory.max``).
- A limit is written down before it is lowered, so that another process of this program puts it back after a crash.
- Whoever else changes a limit meanwhile wins: only our own value is put back.
- In version 1 the kubelet may raise the very limit that is low for a moment, and that write is lost. It raises those of
  the containers next: so a pod is looked at for a while, and never keeps less than its containers may have.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
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
"""Bytes that a hold leaves beyond what cannot be reclaimed: programs allocate while their limit is low."""

AT_ONCE: Final = 8 * 1024**2
"""Bytes to reclaim in one write: kernels take up to half more than they are asked for."""

LOOKS: Final = 60
"""Calls of ``settle``, one a second, for which a pod of version 1 is looked at: a kubelet resizes within seconds."""

_GONE: Final = (errno.ENOENT, errno.ENODEV)
"""Errors of a group that went before its file was opened, or after."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class RefusedHoldError(Exception):
    """The hold would harm the pod, or there is no such pod."""


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A limit that is at ``lowered_to`` bytes now and was at ``was`` before (None: no limit)."""

    file: Path
    is_v2: bool
    was: int | None
    lowered_to: int

    def put_back(self) -> None:
        if read(self.file, byte_limit) == self.lowered_to:
            none = b"max" if self.is_v2 else b"-1"
            _write(self.file, none if self.was is None else b"%d" % self.was)


class Holds:
    """The holds of this process on pods below ``root``. ``records`` is a folder for what must be put back.

    Calls about one pod come one after the other; those about several may come at once.
    """

    def __init__(self, root: Path, records: Path) -> None:
        self._locator = Locator(root)
        self._records = records
        self._lowered: dict[str, _Lowered] = {}
        self._looks: dict[str, int] = {}

    def hold(self, pod_uid: str, size: int) -> int:
        """Reclaim down to ``size`` bytes, and return the bytes that the pod uses after it; a second call goes on.

        In version 2 the pod stays there until ``release``. Raises ``RefusedHoldError``, or ``OSError`` and
        ``ValueError`` if the control group is gone or malformed.
        """
        group = self._pod(pod_uid)
        files, size = MemoryFiles.of(group), size // _PAGE * _PAGE
        least = max(files.read().needed, _protected(group)) + HEADROOM
        if size < least:
            raise RefusedHoldError(texts.HOLD_TOO_LOW.format(size=size, least=least))
        # Version 1 has only the limit that kills. It is low until the kernel has reclaimed, and no longer.
        if not group.is_v2 and not _is_below_containers(group):
            self._looks[pod_uid] = LOOKS
        self._lower(pod_uid, group, max(size, _left_by_reclaim(group, files, size)))
        if not group.is_v2:
            self.release(pod_uid)
        return read(files.used, number)

    def release(self, pod_uid: str) -> None:
        """End the hold on a pod, if there is one. Raises ``OSError`` or ``ValueError`` if the limit stays as it is."""
        lowered = self._lowered.get(pod_uid)
        if lowered is None:
            return
        try:
            lowered.put_back()
        except OSError as error:
            # If the pod is gone, so is its limit.
            if error.errno not in _GONE:
                raise
        del self._lowered[pod_uid]
        (self._records / pod_uid).unlink(missing_ok=True)

    def unsettled(self) -> list[str]:
        """The pods to call ``settle`` about, once a second while nobody holds them."""
        return list(self._looks)

    def settle(self, pod_uid: str) -> None:
        """Raise the pod's limit to those of its containers, if the kubelet's write was lost. Raises like ``hold``."""
        left = self._looks.pop(pod_uid, 0) - 1
        group = self._pod(pod_uid)
        if _is_below_containers(group):
            _write(_limit(group), b"%d" % _containers_limit(group))
        if left > 0:
            self._looks[pod_uid] = left

    def restore(self) -> list[str]:
        """Put back what an earlier process left behind; returns the UIDs of those pods. Raises ``OSError``."""
        self._records.mkdir(mode=0o700, exist_ok=True)
        status = self._records.lstat()
        # Whoever else owns the folder would choose what is written and removed here.
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EPERM, texts.FOREIGN_RECORDS, str(self._records))
        restored = []
        for record in sorted(self._records.iterdir()):
            try:
                group = self._pod(record.name)
                was, lowered_to = _read_record(record)
                self._lowered[record.name] = _Lowered(_limit(group), group.is_v2, was, lowered_to)
                self.release(record.name)
                restored.append(record.name)
            # No pod any more, or no record of ours.
            except (RefusedHoldError, ValueError):
                record.unlink()
            except OSError as error:
                # The other pods still get theirs back; the record of this one stays for the next process.
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
        is_ours = before is not None and now == before.lowered_to
        was = before.was if before is not None and is_ours else now
        # A hold above what the pod may have anyway would lift its limit.
        if was is not None and was <= size:
            self.release(pod_uid)
            return
        _write_record(self._records / pod_uid, was, size)
        self._lowered[pod_uid] = _Lowered(file, group.is_v2, was, size)
        try:
            _write(file, b"%d" % size)
        except OSError as error:
            # Version 1: so much could not be reclaimed now, and the limit is still what it was.
            if error.errno != errno.EBUSY:
                raise


def _limit(group: ControlGroup) -> Path:
    return group.file("memory", "memory.high" if group.is_v2 else "memory.limit_in_bytes")


def _containers_limit(group: ControlGroup) -> int:
    """The bytes that the pod's containers may have by version 1's limits of their own; those without one count as 0."""
    folders = (path for path in _limit(group).parent.iterdir() if path.is_dir())
    limits = (read_optional(folder / "memory.limit_in_bytes", byte_limit) for folder in folders)
    return sum(limit or 0 for limit in limits)


def _is_below_containers(group: ControlGroup) -> bool:
    limit = read(_limit(group), byte_limit)
    return limit is not None and limit < _containers_limit(group)


def _left_by_reclaim(group: ControlGroup, files: MemoryFiles, size: int) -> int:
    """Have the kernel reclaim down to ``size``, and return the bytes that the pod uses after it; 0 if it cannot.

    A limit far below what is used stops every task that allocates for up to two seconds, again and again until all has
    been reclaimed, which takes long if it has to be written first. This stops nobody, so the limit only follows it.
    """
    reclaim, used = group.file("memory", "memory.reclaim"), read(files.used, number)
    # Version 1 lacks the file, and so do kernels before 5.19.
    if not group.is_v2 or used <= size or not reclaim.exists():
        return 0
    try:
        # A bound, since what is reclaimed may be filled again at once.
        for _ in range((used - size) // AT_ONCE + 1):
            _write(reclaim, b"%d" % min(used - size, AT_ONCE))
            used = read(files.used, number)
            if used <= size:
                break
    except OSError as error:
        # The kernel did not find so much now. The next call goes on.
        if error.errno != errno.EAGAIN:
            raise
    return read(files.used, number) // _PAGE * _PAGE


def _protected(group: ControlGroup) -> int:
    """Bytes that version 2's ``memory.min`` keeps from being reclaimed."""
    file = group.file("memory", "memory.min")
    return 0 if not group.is_v2 else read_optional(file, number) or 0


def _write(file: Path, text: bytes) -> None:
    # Without O_CREAT: in a group that has just gone there is nothing to make.
    opened = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(opened, text)
    finally:
        os.close(opened)


def _write_record(file: Path, was: int | None, lowered_to: int) -> None:
    file.write_text(f"{'max' if was is None else was}\n{lowered_to}\n")


def _read_record(file: Path) -> tuple[int | None, int]:
    was, _, lowered_to = read(file, bytes).partition(b"\n")
    return byte_limit(was), number(lowered_to)
