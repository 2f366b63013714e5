"""Refusals of an API server, and their meaning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError, Tolerating
from protocol.kubernetes.refusals import SHOWN, RefusalKind, classify, read_refusal, refusal_in
from protocol.kubernetes.watch_times import WatchTimes, watch_query
from protocol.units import Seconds

K = RefusalKind


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "", K.INVALID),
        (401, "", K.UNAUTHORIZED),
        (403, "Forbidden", K.FORBIDDEN),
        (404, "NotFound", K.NOT_FOUND),
        (409, "", K.CONFLICT),
        (409, "Conflict", K.CONFLICT),
        (409, "AlreadyExists", K.ALREADY_EXISTS),
        (410, "Expired", K.GONE),
        (410, "", K.GONE),
        (418, "", K.OTHER),
        (422, "Invalid", K.INVALID),
        (429, "TooManyRequests", K.TOO_MANY_REQUESTS),
        (500, "InternalError", K.UNAVAILABLE),
        (502, "", K.UNAVAILABLE),
        (504, "Timeout", K.UNAVAILABLE),
    ],
)
def test_reason_and_status_say_what_is_wrong(status: int, reason: str, kind: K) -> None:
    assert classify(status, reason).kind is kind
    body = f'{{"kind":"Status","reason":"{reason}","message":"why"}}'.encode()
    found = read_refusal(status, body)
    assert (found.kind, str(found), found.is_unknown) == (kind, f"{status}: why", status >= 500)


def test_a_proxys_answer_is_shown_as_it_is() -> None:
    assert str(read_refusal(502, b"<html>bad gateway</html>")) == "502: <html>bad gateway</html>"
    assert str(read_refusal(404, b"{}")) == "404: not found"
    assert len(read_refusal(500, b"x" * 10_000).message) == SHOWN


@pytest.mark.parametrize(
    ("header", "seconds"), [("", None), ("2", 2.0), ("9999999", None), ("4000", None), ("soon", None), ("٣", None)]
)
def test_retry_after_is_bounded(header: str, seconds: float | None) -> None:
    assert read_refusal(429, b"", header).retry_after == seconds


def test_the_status_of_an_error_event() -> None:
    assert refusal_in({"code": 410, "reason": "Expired"}).kind is K.GONE
    assert refusal_in({"message": "broken"}).kind is K.UNAVAILABLE
    assert refusal_in({"code": 10**30}).status == 500
    assert refusal_in({"code": 429, "details": {"retryAfterSeconds": 3}}).retry_after == 3.0


@given(st.integers(100, 599), st.binary(max_size=60), st.text(max_size=10))
def test_any_answer_is_a_refusal(status: int, body: bytes, header: str) -> None:
    assert read_refusal(status, body, header).status == status


@given(st.floats(0, 1))
def test_server_ends_quiet_watch_first(jitter: float) -> None:
    times = WatchTimes.spread(jitter)
    assert 240 <= times.requested <= 480
    assert times.requested < times.silence


def test_watch_without_version_starts_with_objects() -> None:
    times = WatchTimes(60, Seconds(90.0))
    common = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "60"}
    assert watch_query("", times) == common
    assert watch_query("5", times) == common | {"resourceVersion": "5"}


def test_tolerates_refusals_of_one_kind() -> None:
    with Tolerating(RefusalKind.NOT_FOUND):
        raise ApiRefusedError(classify(404))
    with pytest.raises(ApiRefusedError), Tolerating(RefusalKind.NOT_FOUND):
        raise ApiRefusedError(classify(409))
    with pytest.raises(ApiUnknownError), Tolerating(RefusalKind.NOT_FOUND):
        raise ApiUnknownError("no answer")
