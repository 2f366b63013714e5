"""Texts that cannot be an agent's token are rejected without a review, and no text raises."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.auth.token_shape import LEEWAY, MAX_TOKEN, bearer_token, plausible_until
from tests.nesting import DEEP
from tests.scheduler_plugin.objects import token_text

AUDIENCE = "autoscale-scheduler"
NOW = 1_800_000_000.0


def segment(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def token(body: bytes, header: bytes = b'{"alg":"ES256"}', signature: bytes = b"s" * 64) -> str:
    return ".".join(map(segment, (header, body, signature)))


def is_one(text: str) -> bool:
    return plausible_until(text, AUDIENCE, NOW) is not None


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"aud": AUDIENCE},
        {"aud": ["other", AUDIENCE]},
        {"exp": NOW - LEEWAY + 1},
        {"kubernetes.io": {"node": {"name": "n1", "uid": "u"}}},
    ],
)
def test_a_token_of_the_cluster_may_be_one(claims: dict[str, Any]) -> None:
    assert is_one(token_text("t", **claims))


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": []},
        {"aud": ["other"]},
        {"aud": 7},
        {"iss": ""},
        {"iss": None},
        {"sub": "admin"},
        {"sub": "system:serviceaccount:a:b:c"},
        {"exp": NOW - LEEWAY},
        {"exp": "never"},
        {"kubernetes.io": None},
        {"kubernetes.io": {"namespace": "default"}},
        {"kubernetes.io": {"pod": "db"}},
    ],
)
def test_claims_that_no_agent_has_are_junk(claims: dict[str, Any]) -> None:
    assert not is_one(token_text("t", **claims))


BODY = base64.urlsafe_b64decode(token_text("t").split(".")[1] + "===")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "ä.b.c",
        token(BODY, header=b'{"alg":"none"}'),
        token(BODY, header=b"{}"),
        token(BODY, signature=b"short"),
        token(DEEP),
        token(b'{"exp":' + b"9" * 9000 + b"}"),
        token(b"\xff\xfe"),
    ],
)
def test_a_text_of_another_shape_is_junk(text: str) -> None:
    assert not is_one(text)


@given(st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,60}"))
def test_no_text_raises(text: str) -> None:
    assert not is_one(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(json.loads(BODY))), JSON)
def test_no_claim_of_any_kind_raises(claim: str, value: object) -> None:
    assert is_one(token_text("t", **{claim: value})) in (True, False)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        (None, None),
        ("Bearer " + "x" * MAX_TOKEN, "x" * MAX_TOKEN),
        ("Bearer " + "x" * (MAX_TOKEN + 1), None),
    ],
)
def test_the_token_of_a_header(header: str | None, found: str | None) -> None:
    assert bearer_token(header) == found
