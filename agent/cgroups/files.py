"""Reads cgroup files, up to a bounded size. Parse errors name the path."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

LARGEST: Final = 64 * 1024
"""Bytes to read of one file: ``memory.stat`` has up to 4 KiB, ``io.stat`` about 100 bytes per device."""

_ABSENT: Final = (errno.ENOENT, errno.EOPNOTSUPP)
"""Without PSI, pressure files do not exist or cannot be read."""


def read(path: Path, parse: Callable[[bytes], T]) -> T:
    """Parse a file. Raises ``OSError``, or ``ValueError`` with the path."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(file, LARGEST)
    finally:
        os.close(file)
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_optional(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """Parse a file that some kernels lack; return None if it is absent. Raises like ``read``."""
    try:
        return read(path, parse)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
