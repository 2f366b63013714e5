"""Contents of control group files as numbers. Pure; whatever a file has, the only error is ``ValueError``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNLIMITED: Final = 2**62
"""Bytes from which on a limit is none; version 1 writes the largest number of whole pages."""


def number(text: bytes) -> int:
    """A file with one number, such as ``memory.current``.

    >>> number(b"1048576\\n")
    1048576
    """
    # ``int`` also takes signs, underscores and other digits.
    if not text.strip().isdigit():
        raise ValueError(f"expected a number, got {text[:80]!r}")
    return int(text)


def byte_limit(text: bytes) -> int | None:
    """A limit in bytes; None if there is none.

    >>> byte_limit(b"max\\n"), byte_limit(b"9223372036854771712\\n"), byte_limit(b"4096\\n")
    (None, None, 4096)
    """
    most = UNLIMITED if text.strip() == b"max" else number(text)
    return None if most >= UNLIMITED else most


def counters(text: bytes) -> dict[bytes, bytes]:
    """A file with one name and number a line, such as ``memory.stat``. ``counter`` reads the numbers.

    >>> counters(b"anon 4096\\nfile 8192\\n")
    {b'anon': b'4096', b'file': b'8192'}
    """
    words = text.split()
    if len(words) % 2:
        raise ValueError(f"expected names with numbers, got {text[:80]!r}")
    return dict(zip(words[::2], words[1::2], strict=True))


def counter(counts: Mapping[bytes, bytes], name: bytes) -> int:
    """One of the numbers of ``counters``.

    >>> counter({b"anon": b"4096"}, b"anon")
    4096
    """
    if name not in counts:
        raise ValueError(f"expected {name.decode()}, which is missing")
    return number(counts[name])


def stalled(text: bytes) -> float:
    """Seconds in which some task waited, of a pressure file.

    >>> stalled(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\\n")
    1.5
    """
    line = text.partition(b"\n")[0]
    kind, _, total = line.rpartition(b" total=")
    if not kind.startswith(b"some "):
        raise ValueError(f"expected the time in which some task waited, got {line[:80]!r}")
    return number(total) / 1e6


def moved(text: bytes) -> tuple[int, int]:
    """Bytes read and written, of ``io.stat``.

    >>> moved(b"253:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\\n8:0 rbytes=4096 wbytes=512\\n7:0 \\n")
    (4096, 512)
    """
    read = written = 0
    for line in text.splitlines():
        fields = dict(field.split(b"=", 1) for field in line.split()[1:] if b"=" in field)
        # The busiest device instead of all: what a device of LVM or encryption moves, the disk below counts again.
        read = max(read, number(fields.get(b"rbytes", b"0")))
        written = max(written, number(fields.get(b"wbytes", b"0")))
    return read, written
