"""Dependencies of a program or library, read from its ELF headers (pure).

Used to find missing libraries, even of programs for another architecture.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = b"\x7fELF\x02\x01"
"""64 bits, little endian: all platforms that images are built for."""
# After 16 bytes of identification: type, machine, version, entry, program headers' offset, section headers' offset,
# flags, header size, size and count of program headers.
_HEADER: Final = struct.Struct("<16xHHIQQQIHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_LOAD, _DYNAMIC_SEGMENT, _INTERPRETER = 1, 2, 3  # PT_LOAD, PT_DYNAMIC, PT_INTERP
_NEEDED, _STRINGS = 1, 5  # DT_NEEDED, DT_STRTAB

MACHINES: Final = {62: "amd64", 183: "arm64"}
"""The number of a machine in an ELF header → its name in Debian and in images."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One program or library: its machine, the libraries that it needs, and the program that loads it."""

    machine: str
    needed: tuple[str, ...]
    loader: str


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_binary(data: bytes) -> Binary | None:
    """The ELF file in ``data``; None for anything else."""
    if not data.startswith(_MAGIC):
        return None
    _, machine, _, _, first, _, _, _, size, count = _HEADER.unpack_from(data)
    segments = [_segment(data, first + number * size) for number in range(count)]
    # Only programs name an interpreter; libraries have none.
    loader = next((_content(data, segment) for segment in segments if segment.kind == _INTERPRETER), b"")
    return Binary(MACHINES.get(machine, str(machine)), _needed(data, segments), loader.rstrip(b"\0").decode())


def _segment(data: bytes, place: int) -> _Segment:
    kind, _, offset, address, _, size = _SEGMENT.unpack_from(data, place)
    return _Segment(kind, offset, address, size)


def _content(data: bytes, segment: _Segment) -> bytes:
    return data[segment.offset : segment.offset + segment.size]


def _needed(data: bytes, segments: list[_Segment]) -> tuple[str, ...]:
    dynamic = next((_content(data, segment) for segment in segments if segment.kind == _DYNAMIC_SEGMENT), b"")
    entries = [_DYNAMIC.unpack_from(dynamic, place) for place in range(0, len(dynamic), _DYNAMIC.size)]
    # DT_STRTAB is an address in memory; the segment that is loaded there gives its place in the file.
    address = next((value for tag, value in entries if tag == _STRINGS), 0)
    home = next(
        (
            segment
            for segment in segments
            if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size
        ),
        None,
    )
    # A statically linked program has no table of strings.
    if home is None:
        return ()
    strings = home.offset + address - home.address
    places = (strings + value for tag, value in entries if tag == _NEEDED)
    return tuple(data[place : data.index(b"\0", place)].decode() for place in places)
