"""Dependencies of a program or library, from its ELF headers, for any architecture (pure)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = b"\x7fELF\x02\x01"
"""64 bits, little endian, as on all our platforms."""
# After e_ident: type, machine, version, entry, phoff, shoff, flags, ehsize, phentsize, phnum.
_HEADER: Final = struct.Struct("<16xHHIQQQIHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_LOAD, _DYNAMIC_SEGMENT, _INTERPRETER = 1, 2, 3  # PT_LOAD, PT_DYNAMIC, PT_INTERP
_NEEDED, _STRINGS = 1, 5  # DT_NEEDED, DT_STRTAB

MACHINES: Final = {62: "amd64", 183: "arm64"}
"""e_machine → Debian architecture."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One program or library: its architecture, needed libraries, and dynamic loader (empty if none)."""

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
    """Parse the ELF file ``data``; return None if it is not one."""
    if not data.startswith(_MAGIC):
        return None
    _, machine, _, _, first, _, _, _, size, count = _HEADER.unpack_from(data)
    segments = [_segment(data, first + number * size) for number in range(count)]
    loader = next((_content(data, segment) for segment in segments if segment.kind == _INTERPRETER), b"")
    return Binary(MACHINES.get(machine, str(machine)), _needed(data, segments), loader.rstrip(b"\0").decode())


def _segment(data: bytes, offset: int) -> _Segment:
    kind, _, offset, address, _, size = _SEGMENT.unpack_from(data, offset)
    return _Segment(kind, offset, address, size)


def _content(data: bytes, segment: _Segment) -> bytes:
    return data[segment.offset : segment.offset + segment.size]


def _needed(data: bytes, segments: list[_Segment]) -> tuple[str, ...]:
    dynamic = next((_content(data, segment) for segment in segments if segment.kind == _DYNAMIC_SEGMENT), b"")
    entries = [_DYNAMIC.unpack_from(dynamic, offset) for offset in range(0, len(dynamic), _DYNAMIC.size)]
    # DT_STRTAB is a virtual address; find its segment to get the file offset.
    address = next((value for tag, value in entries if tag == _STRINGS), 0)
    home = next(
        (
            segment
            for segment in segments
            if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size
        ),
        None,
    )
    # Statically linked.
    if home is None:
        return ()
    strings = home.offset + address - home.address
    offsets = (strings + value for tag, value in entries if tag == _NEEDED)
    return tuple(data[offset : data.index(b"\0", offset)].decode() for offset in offsets)
