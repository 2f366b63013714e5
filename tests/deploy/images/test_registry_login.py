"""Logins in docker's file, and what registries ask for."""

from __future__ import annotations

import json

import pytest

from deploy.images.formats.registry_login import (
    Challenge,
    LoginError,
    RegistryLogin,
    login_for,
    read_challenge,
    token_of,
)


def config(**document: object) -> str:
    return json.dumps(document)


def test_a_login_is_found_by_the_registrys_name() -> None:
    document = config(auths={"r:5000": {"auth": "bWU6cGFzczp3b3Jk"}, "other": {"auth": "eDp5"}})
    assert login_for("r:5000", document) == RegistryLogin("me", "pass:word")
    assert login_for("r:5000", document).header == "Basic bWU6cGFzczp3b3Jk"
    assert "pass" not in repr(login_for("r:5000", document))


@pytest.mark.parametrize("document", ["", "{}", config(auths={}), config(auths={"other": {"auth": "eDp5"}})])
def test_without_a_login_nothing_is_shown(document: str) -> None:
    assert login_for("r", document) == RegistryLogin()
    assert RegistryLogin().header == ""


@pytest.mark.parametrize(
    "document",
    [
        config(auths={"r": {}}, credsStore="desktop"),
        config(credHelpers={"r": "cloud"}),
        config(auths={"r": {"identitytoken": "x"}}),
    ],
)
def test_a_login_that_a_helper_keeps_is_said(document: str) -> None:
    with pytest.raises(LoginError, match="a credential helper keeps"):
        login_for("r", document)


@pytest.mark.parametrize("document", ["{", "[]", config(auths=[]), config(auths={"r": {"auth": "?"}})])
def test_a_file_that_cannot_be_read_is_said(document: str) -> None:
    with pytest.raises(LoginError, match="cannot be read"):
        login_for("r", document)


def test_challenge_names_token_endpoint() -> None:
    header = 'Bearer realm="https://t/x",service="r",scope="repository:a/b:pull,push",error=invalid'
    challenge = read_challenge(header)
    assert challenge == Challenge(
        "bearer",
        {"realm": "https://t/x", "service": "r", "scope": "repository:a/b:pull,push", "error": "invalid"},
    )
    assert challenge.token_url == "https://t/x?service=r&scope=repository%3Aa%2Fb%3Apull%2Cpush"
    assert read_challenge('Bearer realm="https://t/x"').token_url == "https://t/x"


def test_a_basic_challenge_needs_no_token() -> None:
    assert read_challenge('Basic realm="r"').scheme == "basic"


@pytest.mark.parametrize("header", ["", "Negotiate", "Digest realm=x", 'Bearer realm="file:///etc/passwd"', "Bearer x"])
def test_an_unknown_challenge_is_refused(header: str) -> None:
    with pytest.raises(LoginError, match="unknown kind"):
        _ = read_challenge(header).token_url


@pytest.mark.parametrize("answer", ['{"token": "t"}', '{"access_token": "t"}'])
def test_token_is_read_under_both_names(answer: str) -> None:
    assert token_of(answer) == "t"


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"token": 1}'])
def test_an_answer_without_a_token_is_refused(answer: str) -> None:
    with pytest.raises(LoginError, match="no token"):
        token_of(answer)
