"""Reading control group files: bounded, and told by path if they are malformed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

LARGEST: Final = 64 * 1024
"""Bytes of one file that are read; ``memory.stat`` has 4 KiB at most, ``io.stat`` 100 bytes for each device."""

_ABSENT: Final = (errno.ENOENT, errno.EOPNOTSUPP)
"""A kernel without pressure lacks the files, or has some that cannot be read."""


def read(path: Path, parse: Callable[[bytes], T]) -> T:
    """The contents of a file. Raises ``OSError``, or ``ValueError`` with the path."""
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
    """The contents of a file that the kernel may lack. Raises like ``read``."""
    try:
        return read(path, parse)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
