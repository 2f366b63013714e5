"""Accumulates samples into spans. A sample counts until the next one, unless that comes too late."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from scheduler_plugin.history.core.samples import MINUTE, SECOND, Millis, Row
from scheduler_plugin.history.core.spans import Span, joined, sample_span

F = TypeVar("F", bound=Hashable)


class SpanPace(msgspec.Struct, frozen=True, gc=False):
    """Resolution of spans, in milliseconds.

    A span ends when the facts change, when an amount changes and the span is longer than ``fine``, or after
    ``heartbeat``. Between samples more than ``gap`` apart the time is unknown.
    """

    fine: Millis
    heartbeat: Millis
    gap: Millis


_PACES: Final = ((200, 0, MINUTE), (2000, 30 * SECOND, MINUTE))
_OF_MANY: Final = (MINUTE, 2 * MINUTE)
GAP_INTERVALS: Final = 4
"""The state of an object that is missing for more than this many intervals is unknown."""


def pace_for(objects: int, interval: Millis) -> SpanPace:
    """Resolution of spans, coarser for more ``objects``; they are sampled every ``interval``.

    >>> pace_for(10, 10_000)
    SpanPace(fine=0, heartbeat=60000, gap=40000)
    >>> pace_for(10_000, 10_000).fine
    60000
    """
    fine, heartbeat = next(((fine, beat) for most, fine, beat in _PACES if objects <= most), _OF_MANY)
    return SpanPace(fine, max(heartbeat, interval), GAP_INTERVALS * interval)


@dataclass(slots=True)
class _Open(Generic[F]):
    """The open span of one object."""

    facts: F
    amounts: Row
    begun: Millis
    latest: Millis
    changed: Millis
    parts: list[Span] = field(default_factory=list)

    def closed(self, until: Millis) -> Span | None:
        """Close the span at ``until``; None if it is empty."""
        # Amounts since the last change are not in the parts yet.
        if until > self.changed:
            self.parts.append(sample_span(self.changed, until, self.amounts))
        return joined(self.parts) if self.parts else None


class Accumulation(Generic[F]):
    """Open spans of all objects, by key."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _Open[F]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, key: Hashable, at: Millis, facts: F, amounts: Row, pace: SpanPace) -> tuple[F, Span] | None:
        """Add a sample; return the span that it ends, if any."""
        current = self._open.get(key)
        if current is None:
            self._open[key] = _Open(facts, amounts, at, at, at)
            return None
        # A small correction of the clock; ``rewind`` is for larger ones.
        if at <= current.latest:
            return None
        is_gap = at - current.latest > pace.gap
        # Amounts in a gap are unknown, so end the span at its last sample.
        until = current.latest if is_gap else at
        is_same = amounts == current.amounts
        lasted = at - current.begun
        # The heartbeat ends unchanged spans too, so that a crash loses little.
        ends = is_gap or facts != current.facts or lasted >= pace.heartbeat or (not is_same and lasted >= pace.fine)
        if ends:
            self._open[key] = _Open(facts, amounts, at, at, at)
            span = current.closed(until)
            return None if span is None else (current.facts, span)
        current.latest = at
        if not is_same:
            # A change within ``fine`` does not end the span; the integral stays exact.
            current.parts.append(sample_span(current.changed, at, current.amounts))
            current.amounts, current.changed = amounts, at
        return None

    def expired(self, now: Millis, pace: SpanPace) -> Iterator[tuple[F, Span]]:
        """End the spans of objects that have been missing for longer than the gap."""
        # A list, because ``_end`` removes the key.
        for key in [key for key, span in self._open.items() if now - span.latest > pace.gap]:
            yield from self._end(key)

    def end(self) -> Iterator[tuple[F, Span]]:
        """End all spans at their last sample."""
        for key in list(self._open):
            yield from self._end(key)

    def rewind(self) -> None:
        """Drop all open spans, because the clock was set back."""
        self._open.clear()

    def _end(self, key: Hashable) -> Iterator[tuple[F, Span]]:
        last = self._open.pop(key)
        span = last.closed(last.latest)
        if span is not None:
            yield last.facts, span
