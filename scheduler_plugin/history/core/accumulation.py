"""Samples become spans: each sample holds until the next one, unless that comes too late."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from scheduler_plugin.history.core.samples import MINUTE, SECOND, Millis, Row
from scheduler_plugin.history.core.spans import Span, held, joined

F = TypeVar("F", bound=Hashable)


class SpanPace(msgspec.Struct, frozen=True, gc=False):
    """Resolution of spans, in milliseconds.

    A span is closed when the facts change, when an amount changes after it has lasted ``fine``, or after ``heartbeat``.
    Samples further apart than ``gap`` leave a gap.
    """

    fine: Millis
    heartbeat: Millis
    gap: Millis


_PACES: Final = ((200, 0, MINUTE), (2000, 30 * SECOND, MINUTE))
_OF_MANY: Final = (MINUTE, 2 * MINUTE)
GAP_INTERVALS: Final = 4
"""An object that was not seen for this many intervals is unknown in between."""


def pace_for(objects: int, interval: Millis) -> SpanPace:
    """Resolution of spans for that many objects sampled every ``interval``: the more, the coarser.

    >>> pace_for(10, 10_000)
    SpanPace(fine=0, heartbeat=60000, gap=40000)
    >>> pace_for(10_000, 10_000).fine
    60000
    """
    fine, heartbeat = next(((fine, beat) for most, fine, beat in _PACES if objects <= most), _OF_MANY)
    return SpanPace(fine, max(heartbeat, interval), GAP_INTERVALS * interval)


@dataclass(slots=True)
class _Open(Generic[F]):
    """Samples of one object since its open span began."""

    facts: F
    amounts: Row
    begun: Millis
    latest: Millis
    changed: Millis
    parts: list[Span] = field(default_factory=list)

    def closed(self, until: Millis) -> Span | None:
        """The span until then; None if it has no length."""
        # The amounts since the last change are not among the parts yet.
        if until > self.changed:
            self.parts.append(held(self.changed, until, self.amounts))
        return joined(self.parts) if self.parts else None


class Accumulation(Generic[F]):
    """The open spans of all objects, by their key."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _Open[F]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, key: Hashable, at: Millis, facts: F, amounts: Row, pace: SpanPace) -> tuple[F, Span] | None:
        """Takes a sample; the span that it closes, if any."""
        current = self._open.get(key)
        if current is None:
            self._open[key] = _Open(facts, amounts, at, at, at)
            return None
        # The clock was corrected slightly; ``rewind`` is for one that was set back.
        if at <= current.latest:
            return None
        is_gap = at - current.latest > pace.gap
        # Amounts within a gap are unknown, so the span ends with the last sample before it.
        until = current.latest if is_gap else at
        is_same = amounts == current.amounts
        lasted = at - current.begun
        # After a heartbeat even an unchanged span is written, so that a crash loses little.
        ends = is_gap or facts != current.facts or lasted >= pace.heartbeat or (not is_same and lasted >= pace.fine)
        if ends:
            self._open[key] = _Open(facts, amounts, at, at, at)
            span = current.closed(until)
            return None if span is None else (current.facts, span)
        current.latest = at
        if not is_same:
            # A change within ``fine`` stays in the same span, whose integral is exact all the same.
            current.parts.append(held(current.changed, at, current.amounts))
            current.amounts, current.changed = amounts, at
        return None

    def expired(self, now: Millis, pace: SpanPace) -> Iterator[tuple[F, Span]]:
        """Closes the spans of objects that have not been seen for longer than the gap."""
        # A list: ``_end`` removes the key.
        for key in [key for key, span in self._open.items() if now - span.latest > pace.gap]:
            yield from self._end(key)

    def end(self) -> Iterator[tuple[F, Span]]:
        """Closes all spans, each where its object was seen last."""
        for key in list(self._open):
            yield from self._end(key)

    def rewind(self) -> None:
        """Forgets all open spans: the clock was set back, and the next samples are earlier than these."""
        self._open.clear()

    def _end(self, key: Hashable) -> Iterator[tuple[F, Span]]:
        last = self._open.pop(key)
        span = last.closed(last.latest)
        if span is not None:
            yield last.facts, span
