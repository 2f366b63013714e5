"""Bounded tables of a stand-in: TCP sessions and queued frames (pure).

Packed bytes, because Python objects take ten times the memory and a node may have hundreds of sleeping guests.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Final
from zlib import crc32

# The connection, its client's next sequence number, and the tick of the last probe with a bit for certainty.
_RECORD: Final = struct.Struct("!8sII")
_PART: Final = struct.Struct("!II")
_SIZE: Final = _RECORD.size
MAX_CONNECTIONS: Final = 192
# Source address of each record of a full table.
_SOURCES: Final = struct.Struct("!" + "I12x" * MAX_CONNECTIONS)
_TICKS: Final = 64
"""Ticks per second."""
APART: Final = 0.5
"""Seconds. Keepalive probes of a connection are at least a second apart; other segments that look alike are not."""
END_APART: Final = 0.9
"""Seconds. By then a client repeats what was lost before the end of its session, not only the end."""
_WRAP: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_TIME: Final = 0x7FFFFFFF


def is_after(one: int, other: int) -> bool:
    """Return True if sequence number ``one`` is after ``other``; both wrap.

    >>> is_after(5, 0xFFFFFFFF), is_after(7, 7)
    (True, False)
    """
    return 0 < (one - other) & _WRAP < _HALF


class EmptySegment(Enum):
    """Kind of a segment without data: a plain ACK, a keepalive probe, or not known yet."""

    PLAIN = "plain"
    PROBE = "probe"
    UNSURE = "unsure"


class Connections:
    """Next sequence number of each client, learned from its keepalive probes and FINs.

    A full table evicts the oldest entry of the source address with the most entries. An evicted connection is learned
    again from its next probe, so an entry only has to survive until the client answers.
    """

    def __init__(self) -> None:
        self._table = bytearray()

    def __len__(self) -> int:
        return len(self._table) // _SIZE

    def next_of(self, connection: bytes) -> int | None:
        """Return the client's next sequence number, or None unless confirmed."""
        at = self._find(connection)
        if at is None:
            return None
        following, mark = _PART.unpack_from(self._table, at + 8)
        return following if mark & 1 else None

    def expect(self, connection: bytes, following: int, now: float) -> None:
        """Store the client's next sequence number as confirmed."""
        self._store(connection, following, _ticks(now) << 1 | 1)

    def is_repeated(self, connection: bytes, seq: int, now: float) -> bool:
        """Return True if an unconfirmed client already sent an end with ``seq`` at least ``END_APART`` ago; otherwise
        store it. Nothing that it sent before that is lost, or it would have retransmitted it.
        """
        at = self._find(connection)
        expected, mark = (None, 0) if at is None else _PART.unpack_from(self._table, at + 8)
        if expected == seq:
            return self._ticks_since(mark, now) >= _TICKS * END_APART
        # The first part of an end in two segments may be lost.
        if expected is None or not is_after(seq, expected):
            self._store(connection, seq, _ticks(now) << 1)
        return False

    def may_answer(self, connection: bytes, now: float) -> bool:
        """Return False if a confirmed client was answered less than ``APART`` ago; otherwise store ``now``."""
        at = self._find(connection)
        if at is None or self._ticks_since(_PART.unpack_from(self._table, at + 8)[1], now) < _TICKS * APART:
            return False
        self.expect(connection, _PART.unpack_from(self._table, at + 8)[0], now)
        return True

    @staticmethod
    def _ticks_since(mark: int, now: float) -> int:
        return (_ticks(now) - (mark >> 1)) & _TIME

    def classify(self, connection: bytes, seq: int, now: float) -> EmptySegment:
        """Classify a segment without data whose sequence number is ``seq``.

        A keepalive probe has the sequence number before the next one. The next one is confirmed when the probe comes
        again, or when the client sends an ACK with it.
        """
        at, following = self._find(connection), (seq + 1) & _WRAP
        if at is None:
            self._store(connection, following, _ticks(now) << 1)
            return EmptySegment.UNSURE
        expected, mark = _PART.unpack_from(self._table, at + 8)
        # Answering every one would start an endless exchange of ACKs with a client that disagrees.
        is_soon = self._ticks_since(mark, now) < _TICKS * APART
        if (is_soon and expected == following) or (mark & 1 and expected == seq):
            return EmptySegment.PLAIN
        if expected in {following, seq}:
            _PART.pack_into(self._table, at + 8, expected, _ticks(now) << 1 | 1)
            return EmptySegment.PROBE
        _PART.pack_into(self._table, at + 8, following, _ticks(now) << 1)
        return EmptySegment.PLAIN if is_soon else EmptySegment.UNSURE

    def _find(self, connection: bytes) -> int | None:
        at = self._table.find(connection)
        # Skip a match across record boundaries.
        while at >= 0 and at % _SIZE:
            at = self._table.find(connection, at + 1)
        return at if at >= 0 else None

    def _store(self, connection: bytes, following: int, mark: int) -> None:
        at = self._find(connection)
        if at is not None:
            _PART.pack_into(self._table, at + 8, following, mark)
            return
        if len(self) >= MAX_CONNECTIONS:
            self._evict()
        self._table += _RECORD.pack(connection, following, mark)

    def _evict(self) -> None:
        # Runs for each frame of a flood, so it has to be fast.
        sources = _SOURCES.unpack(self._table)
        counts = Counter(sources)
        at = sources.index(max(counts, key=counts.__getitem__)) * _SIZE
        del self._table[at : at + _SIZE]


def _ticks(now: float) -> int:
    return int(now * _TICKS) & _TIME


# Checksum of the segment's identity, length of the offload header, length of the frame.
_ENTRY: Final = struct.Struct("!IBI")
MAX_QUEUED: Final = 4864
"""Bytes of queued frames without the one that woke the guest: enough for 28 closing sessions."""


class FrameQueue:
    """Frames to replay when the guest resumes, in order and without retransmissions."""

    def __init__(self) -> None:
        self._log = bytearray()
        self._room = MAX_QUEUED

    def push(self, identity: bytes, header: bytes, frame: bytes, *, is_needed: bool = False) -> bool:
        """Queue a frame with its offload header. Return False if the queue is full, unless ``is_needed``."""
        checksum = crc32(identity)
        # Trailing zeros are stripped and padded again later: the tap's header size may have changed meanwhile.
        head = header.rstrip(b"\0")
        entry = _ENTRY.pack(checksum, len(head), len(frame)) + head + frame
        # Checked first, so that a flood costs no search.
        if not is_needed and len(self._log) + len(entry) > self._room:
            return False
        if all(entry[0] != checksum for entry in self._entries()):
            self._log += entry
            self._room += len(entry) if is_needed else 0
        return True

    def has(self, identity: bytes) -> bool:
        """Return True if the frame is queued."""
        checksum = crc32(identity)
        return any(entry[0] == checksum for entry in self._entries())

    def all(self, header_size: int) -> list[tuple[bytes, bytes]]:
        """The queued frames, each as an offload header of ``header_size`` bytes and the frame itself."""
        log = bytes(self._log)
        offsets = (entry[1:] for entry in self._entries())
        return [
            (log[head:frame][:header_size].ljust(header_size, b"\0"), log[frame:end]) for head, frame, end in offsets
        ]

    def _entries(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the checksum of each frame, and the offsets of its header, its start and its end."""
        at = 0
        while at < len(self._log):
            checksum, head, frame = _ENTRY.unpack_from(self._log, at)
            start = at + _ENTRY.size
            at = start + head + frame
            yield checksum, start, start + head, at
