"""TokenReviews of bearer tokens, and how their responses are parsed."""

from __future__ import annotations

import base64
import json

import pytest

from protocol.kubernetes.access_reviews import (
    LONGEST_TOKEN,
    Scope,
    access_review,
    account_in,
    claims_audience,
    token_review,
    user_in,
)
from protocol.kubernetes.objects import JsonObject

USER: JsonObject = {"username": "clerk", "uid": "1", "groups": ["a"], "extra": {"k": ["v"]}}


def jwt(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


def test_review_is_for_one_audience() -> None:
    assert token_review("t", "explain")["spec"] == {"token": "t", "audiences": ["explain"]}
    assert token_review("t")["spec"] == {"token": "t"}


@pytest.mark.parametrize(
    ("status", "audience", "is_accepted"),
    [
        ({"authenticated": True, "user": USER, "audiences": ["explain"]}, "explain", True),
        ({"authenticated": True, "user": USER}, "", True),
        ({"authenticated": True, "user": USER, "audiences": ["other"]}, "explain", False),
        ({"authenticated": True, "user": USER, "audiences": "explain"}, "explain", False),
        ({"authenticated": True, "user": USER}, "explain", False),
        ({"authenticated": False, "user": USER, "audiences": ["explain"]}, "explain", False),
        ({"authenticated": True, "user": {}, "audiences": ["explain"]}, "explain", False),
        ("none", "explain", False),
    ],
)
def test_user_is_believed_for_its_audience_alone(status: object, audience: str, is_accepted: bool) -> None:
    found = user_in({"status": status}, audience)
    assert found == (USER if is_accepted else None)


def test_access_is_asked_for_whole_user() -> None:
    spec = access_review(USER, Scope("shop"))["spec"]
    assert spec == {
        "user": "clerk",
        "uid": "1",
        "groups": ["a"],
        "extra": {"k": ["v"]},
        "resourceAttributes": {
            "verb": "list",
            "group": "vm.neon.tech",
            "resource": "virtualmachines",
            "namespace": "shop",
        },
    }


@pytest.mark.parametrize(
    ("token", "is_named"),
    [
        (jwt(aud=["a", "explain"]), True),
        (jwt(aud="explain"), True),
        (jwt(aud="explain more"), False),
        (jwt(), False),
        ("", False),
        ("a.b", False),
        ("a.!.c", False),
        ("a." + "W1tb" * 4000 + ".c", False),
        ("x" * (LONGEST_TOKEN + 1), False),
    ],
)
def test_token_says_whom_it_is_for(token: str, is_named: bool) -> None:
    assert claims_audience(token, "explain") is is_named


def test_token_says_whose_account_it_is() -> None:
    assert account_in(jwt(sub="system:serviceaccount:kube-system:dashboard")) == ("kube-system", "dashboard")
    assert [account_in(jwt(sub=each)) for each in ("clerk", "system:node:a:b", "a:b:c:d:e")] == [None] * 3
