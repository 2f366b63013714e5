"""Timestamps of the Kubernetes API: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(wall: float) -> str:
    """Format seconds since 1970 as ``metav1.Time``.

    >>> timestamp(1767225600.9)
    '2026-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(wall: float) -> str:
    """Format seconds since 1970 as ``metav1.MicroTime``, which Leases and Events use.

    >>> micro_timestamp(1767225600.25)
    '2026-01-01T00:00:00.250000Z'
    """
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_datetime(text: object) -> datetime | None:
    """Like ``parse_timestamp``, as an aware ``datetime`` in UTC.

    >>> str(parse_datetime("2026-01-01T00:00:00Z"))
    '2026-01-01 00:00:00+00:00'
    """
    seconds = parse_timestamp(text)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def parse_timestamp(text: object) -> float | None:
    """Parse a timestamp to seconds since 1970; None if it is invalid or has no time zone.

    >>> parse_timestamp("2026-01-01T00:00:00Z")
    1767225600.0
    >>> parse_timestamp("yesterday") is None
    True
    """
    # No valid timestamp is longer, and the text is untrusted.
    if not isinstance(text, str) or len(text) > 64:
        return None
    try:
        parsed = datetime.fromisoformat(text)
        # Without a zone, Python would assume the local one.
        # In UTC, because a time of the year 1 or 9999 in another zone may be beyond the calendar.
        return parsed.astimezone(UTC).timestamp() if parsed.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
