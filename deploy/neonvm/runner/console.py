"""Copies the guest's console to the pod's log; the end of it is also kept in a file.

A thread of its own copies it, because the log may be slower than the guest; QEMU drops what the pipe does not hold.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

_CHUNK: Final = 4096  # bytes
_KEPT: Final = 256 * 1024  # bytes of the file, after which it begins again


class ConsoleCopy:
    """Copies a pipe to standard output and to ``kept``, from ``start`` until the process ends."""

    def __init__(self, pipe: Path, kept: Path) -> None:
        self._pipe = pipe
        self._kept = kept

    def start(self) -> None:
        """Makes the pipe and begins. Raises ``OSError``."""
        # A restarted container finds the pipe of its predecessor.
        self._pipe.unlink(missing_ok=True)
        os.mkfifo(self._pipe, 0o600)
        # For writing as well: the pipe has no end of file between two QEMUs.
        descriptor = os.open(self._pipe, os.O_RDWR | os.O_CLOEXEC)
        threading.Thread(target=self._copy, args=(descriptor,), name="console", daemon=True).start()

    def _copy(self, descriptor: int) -> None:
        with self._kept.open("wb", buffering=0) as log:
            while part := os.read(descriptor, _CHUNK):
                if log.tell() > _KEPT:
                    # Truncated instead of rotated: only the last words matter, and one file bounds the disk it takes.
                    log.seek(0)
                    log.truncate()
                log.write(part)
                _write_all(part)


def _write_all(part: bytes) -> None:
    while part:
        # A pipe or terminal may take less than it is given.
        part = part[os.write(1, part) :]
