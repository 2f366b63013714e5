"""Parsers of cgroup files. Pure; the only error is ``ValueError``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNLIMITED: Final = 2**62
"""Bytes from which a limit means unlimited: cgroup v1 reports the largest multiple of the page size."""


def number(text: bytes) -> int:
    """The number in a single-value file, such as ``memory.current``.

    >>> number(b"1048576\\n")
    1048576
    """
    # ``int`` would also accept signs, underscores and non-ASCII digits.
    if not text.strip().isdigit():
        raise ValueError(f"expected a number, got {text[:80]!r}")
    return int(text)


def byte_limit(text: bytes) -> int | None:
    """A limit in bytes; None if unlimited.

    >>> byte_limit(b"max\\n"), byte_limit(b"9223372036854771712\\n"), byte_limit(b"4096\\n")
    (None, None, 4096)
    """
    most = UNLIMITED if text.strip() == b"max" else number(text)
    return None if most >= UNLIMITED else most


def counters(text: bytes) -> dict[bytes, bytes]:
    """The keys and values of a flat-keyed file, such as ``memory.stat``. ``counter`` converts a value.

    >>> counters(b"anon 4096\\nfile 8192\\n")
    {b'anon': b'4096', b'file': b'8192'}
    """
    words = text.split()
    if len(words) % 2:
        raise ValueError(f"expected names with numbers, got {text[:80]!r}")
    return dict(zip(words[::2], words[1::2], strict=True))


def counter(counts: Mapping[bytes, bytes], name: bytes) -> int:
    """One value of ``counters`` as a number.

    >>> counter({b"anon": b"4096"}, b"anon")
    4096
    """
    if name not in counts:
        raise ValueError(f"{name.decode()} is missing")
    return number(counts[name])


def stalled(text: bytes) -> float:
    """The ``some`` total of a pressure file, in seconds.

    >>> stalled(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\\n")
    1.5
    """
    line = text.partition(b"\n")[0]
    kind, _, total = line.rpartition(b" total=")
    if not kind.startswith(b"some "):
        raise ValueError(f"expected 'some avg10=… total=…', got {line[:80]!r}")
    return number(total) / 1e6


def moved(text: bytes) -> tuple[int, int]:
    """Bytes read and written, from ``io.stat``.

    >>> moved(b"253:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\\n8:0 rbytes=4096 wbytes=512\\n7:0 \\n")
    (4096, 512)
    """
    read = written = 0
    for line in text.splitlines():
        fields = dict(field.split(b"=", 1) for field in line.split()[1:] if b"=" in field)
        # The busiest device, not the sum: I/O through LVM or dm-crypt counts again on the disk below.
        read = max(read, number(fields.get(b"rbytes", b"0")))
        written = max(written, number(fields.get(b"wbytes", b"0")))
    return read, written
