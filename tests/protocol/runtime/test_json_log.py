"""A line of the log is one line of valid JSON with the same fields in every program."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from protocol.runtime.json_log import QUIET, JsonFormatter, log_as_json, without_secrets
from tests.scheduler_plugin.certificates import pair
from tests.scheduler_plugin.objects import token_text

LOGGER = logging.getLogger("autoscale.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream that gets this process's log; what was set up before is back afterwards."""
    root, found = logging.getLogger(), io.StringIO()
    handlers, level = list(root.handlers), root.level
    log_as_json("debug", found)
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_log_line_has_common_fields(stream: io.StringIO) -> None:
    LOGGER.warning("two\nlines of %d", 7, extra={"vm": "default/db", "node": None, "tries": 3})
    (line,) = lines(stream)
    assert str(line.pop("ts")).endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "autoscale.test",
        "msg": "two\nlines of 7",
        "vm": "default/db",
        "node": None,
        "tries": 3,
    }


def test_an_error_has_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        LOGGER.exception("it broke")
    LOGGER.error("told", extra={"error": "by another"})
    assert [str(line["error"]).splitlines()[-1] for line in lines(stream)] == [
        "ZeroDivisionError: by nothing",
        "by another",
    ]


def test_a_field_cannot_replace_a_common_one(stream: io.StringIO) -> None:
    LOGGER.info("said", extra={"ts": 1, "level": "x", "logger": "y"})
    (line,) = lines(stream)
    assert (line["level"], line["level_"], line["logger_"], line["ts_"]) == ("info", "x", "y", 1)


def test_any_log_line_is_valid_json(stream: io.StringIO) -> None:
    nested: list[object] = []
    nested.append(nested)
    LOGGER.info("odd", extra={"kind": ValueError("x"), "big": 2**70, "lone": "\ud800"})
    LOGGER.info("deep", extra={"nested": nested})
    said = lines(stream)
    assert [line["msg"] for line in said] == ["odd", "deep"]
    assert said[0]["big"] == str(2**70)


def test_long_fields_are_cut(stream: io.StringIO) -> None:
    """A tenant's pod with a service account of a megabyte made a log line of a megabyte."""
    LOGGER.warning("left", extra={"reason": "account " + "x" * 10**6, "error": "y" * 10**6 + " by nothing"})
    (line,) = lines(stream)
    assert (len(str(line["reason"])), len(str(line["error"]))) == (16 * 1024, 16 * 1024)
    assert (str(line["reason"])[:8], str(line["error"])[-10:]) == ("account ", "by nothing")


@pytest.mark.parametrize("secret", [token_text("t"), "Bearer opaque-token", pair("server")[1].decode()])
def test_cut_reveals_no_secret(stream: io.StringIO, secret: str) -> None:
    """Truncated first, a token or key would no longer be recognized as one."""
    LOGGER.error("crashed", extra={"error": "said " + secret + " x" * (8 * 1024 - len(secret) // 2 + 2)})
    (line,) = lines(stream)
    middle = len(secret) // 2
    assert secret[middle : middle + 20] not in str(line["error"])


def test_log_line_steers_no_terminal(stream: io.StringIO) -> None:
    """JSON escapes control characters up to U+001F alone; texts of tenants are logged, and people read logs."""
    hostile = "\x1b[2J\x7f\x9b31m\u202eevil"
    LOGGER.warning("cannot read", extra={"reason": hostile, "vm": hostile})
    (line,) = lines(stream)
    assert (line["reason"], line["vm"]) == (hostile, hostile)
    assert stream.getvalue().isascii()


def test_bad_format_arguments_keep_the_line() -> None:
    record = logging.makeLogRecord({"msg": "%d of %d", "args": (1,)})
    assert json.loads(JsonFormatter().format(record))["msg"] == "%d of %d (1,)"


class Silent:
    def __str__(self) -> str:
        raise RuntimeError("not a word")


def test_failing_repr_keeps_the_line(stream: io.StringIO) -> None:
    LOGGER.info("odd", extra={"vm": "db", "one": Silent(), "many": [1, Silent()], "big": 2**70})
    record = logging.makeLogRecord({"msg": Silent(), "args": (Silent(),)})
    shown = "<a Silent that cannot be shown: RuntimeError>"
    (line,) = lines(stream)
    assert (line["msg"], line["vm"], line["one"]) == ("odd", "db", shown)
    assert json.loads(JsonFormatter().format(record))["msg"].startswith(shown)


def test_a_stack_that_was_asked_for_is_told(stream: io.StringIO) -> None:
    LOGGER.info("here", stack_info=True)
    (line,) = lines(stream)
    assert "test_a_stack_that_was_asked_for_is_told" in str(line["stack"])


def test_what_was_formatted_before_is_kept() -> None:
    record = logging.makeLogRecord({"msg": "m", "exc_text": "Traceback: here"})
    assert json.loads(JsonFormatter().format(record))["error"] == "Traceback: here"


def test_libraries_say_only_their_warnings(stream: io.StringIO) -> None:
    for name in QUIET:
        logging.getLogger(name).info("a request")
    logging.getLogger("httpx2").warning("a problem")
    assert [line["msg"] for line in lines(stream)] == ["a problem"]


def test_http_client_logs_no_requests(stream: io.StringIO) -> None:
    """The HTTP client logs each request at INFO, with its URL, under a name that follows the library's."""
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200)), trust_env=False) as client:
        client.get("http://api/secret-path")
    assert stream.getvalue() == ""


def test_secrets_are_redacted_everywhere(stream: io.StringIO) -> None:
    token, key = token_text("t"), pair("server")[1].decode()
    LOGGER.info("asked with %s", token, extra={"headers": {"Authorization": "Bearer opaque-token/1=", "n": 1}})
    try:
        raise ValueError(f"cannot read {key} here")
    except ValueError:
        LOGGER.exception("refused", extra={"cut": key[:100], "certificate": pair("server")[0].decode()})
    said = stream.getvalue()
    assert [secret for secret in (token, "opaque-token", key.splitlines()[1]) if secret in said] == []
    first, second = lines(stream)
    assert (first["msg"], first["headers"]) == ("asked with <secret>", {"Authorization": "Bearer <secret>", "n": 1})
    assert (second["cut"], str(second["error"]).count("<secret>")) == ("<secret>", 1)
    assert "BEGIN CERTIFICATE" in str(second["certificate"])


@pytest.mark.parametrize(
    "text",
    ["eyJ", "eyJ.", "eyJaaaaaaaa.", "eyJaaaaaaaa.bbbbbbbb.", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "Bearer "],
)
def test_redaction_takes_time_that_grows_with_the_line(text: str) -> None:
    """Strangers choose what is logged of them: 240 KB of ``eyJ`` once held the event loop for 16 s."""
    line = text * (1_000_000 // len(text))
    began = time.process_time()
    without_secrets(line)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a eyJaaaaaaaa.bbbbbbbb.cc b", "a <secret> b"),
        ("neyJaaaaaaaa.bbbbbbbb.cc.dd", "n<secret>.dd"),
        ("x.eyJ.eyJaaaaaaaa.bbbbbbbb.cc", "x.eyJ.<secret>"),
        ("eyJaaaaaaaa.bbbbbbbb.cc.eyJaaaaaaaa.bbbbbbbb.cc", "<secret>.<secret>"),
        ("eyJaaaaaaaa.bbb.eyJdddddddd.eeeeeeee.f", "eyJaaaaaaaa.bbb.<secret>"),
        ("eyJaaaaaaaaaaaaaaaaaaaaaaaaaa", "eyJaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ("the-hash-of-an-image-0123456789.abcdef", "the-hash-of-an-image-0123456789.abcdef"),
    ],
)
def test_tokens_are_found_wherever_they_begin(text: str, kept: str) -> None:
    assert without_secrets(text) == kept
