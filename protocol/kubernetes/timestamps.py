"""Moments as the Kubernetes API writes them: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(wall: float) -> str:
    """Seconds since 1970 as ``metav1.Time``.

    >>> timestamp(1767225600.9)
    '2026-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(wall: float) -> str:
    """Seconds since 1970 as ``metav1.MicroTime``, which leases and events use.

    >>> micro_timestamp(1767225600.25)
    '2026-01-01T00:00:00.250000Z'
    """
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_moment(text: object) -> datetime | None:
    """``parse_timestamp`` as an aware time in UTC.

    >>> str(parse_moment("2026-01-01T00:00:00Z"))
    '2026-01-01 00:00:00+00:00'
    """
    seconds = parse_timestamp(text)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def parse_timestamp(text: object) -> float | None:
    """Seconds since 1970 of such a text; None if it is none, or says no time zone.

    >>> parse_timestamp("2026-01-01T00:00:00Z")
    1767225600.0
    >>> parse_timestamp("yesterday") is None
    True
    """
    # No timestamp of the API is longer; the text may come from anyone.
    if not isinstance(text, str) or len(text) > 64:
        return None
    try:
        moment = datetime.fromisoformat(text)
        # Without a zone, the local zone of this machine would be assumed.
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
