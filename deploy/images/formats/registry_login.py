"""Authentication to a registry (pure): docker's file of logins, and the challenge of a refused request."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

_CHALLENGE: Final = re.compile(r"\s*(?P<scheme>\w+)\s+(?P<rest>.*)", re.DOTALL)
# Values may be quoted or bare tokens.
_PARAMETER: Final = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,"]+))')


class LoginError(ValueError):
    """There is no way to log in; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """A user's name and password; both are empty for a registry that asks for none."""

    user: str = ""
    password: str = ""

    @property
    def header(self) -> str:
        """The login as an ``Authorization`` header; empty without a user."""
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return f"Basic {pair}" if self.user else ""

    def __repr__(self) -> str:
        # Without this, a traceback or log line would show the password.
        return f"RegistryLogin(user={self.user!r})"


def login_for(registry: str, docker_config: str) -> RegistryLogin:
    """The login for ``registry`` in docker's ``config.json``. Raises ``LoginError``."""
    try:
        document = json.loads(docker_config or "{}")
        entry = document.get("auths", {}).get(registry)
        helped = registry in document.get("credHelpers", {})
        if entry and (packed := entry.get("auth")):
            user, _, password = base64.b64decode(packed, validate=True).decode().partition(":")
            return RegistryLogin(user, password)
    except (AttributeError, binascii.Error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LoginError(f"docker's config.json cannot be read: {error}") from error
    # Docker leaves an empty entry for a login that its helper stores.
    if helped or entry is not None:
        raise LoginError(f"a credential helper keeps the login for {registry}: give a config.json with `auth` entries")
    return RegistryLogin()


@dataclass(frozen=True, slots=True)
class Challenge:
    """A registry's challenge: ``basic`` or ``bearer``, and the address that issues a bearer's token."""

    scheme: str
    parameters: Mapping[str, str]

    @property
    def token_url(self) -> str:
        """URL to request a token from. Raises ``LoginError``."""
        # The registry chooses the realm, so it must at least be a web address.
        if self.scheme != "bearer" or not self.parameters.get("realm", "").startswith(("http://", "https://")):
            raise LoginError(f"the registry asks for a login of an unknown kind: {self.scheme}")
        query = {name: value for name in ("service", "scope") if (value := self.parameters.get(name))}
        return f"{self.parameters['realm']}?{urlencode(query)}" if query else self.parameters["realm"]

    def with_scope(self, scope: str) -> Challenge:
        """The same with the rights of ``scope`` beside those that the registry named."""
        # ``dict.fromkeys`` drops a scope that is named twice and keeps the order.
        scopes = dict.fromkeys((*self.parameters.get("scope", "").split(), scope))
        return Challenge(self.scheme, {**self.parameters, "scope": " ".join(scopes)})


def read_challenge(header: str) -> Challenge:
    """The ``WWW-Authenticate`` header of a refused request."""
    match = _CHALLENGE.match(header)
    parameters = {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(match["rest"] if match else "")}
    return Challenge(match["scheme"].lower() if match else header.strip().lower(), parameters)


def token_of(answer: str) -> str:
    """The token in the answer of a token service. Raises ``LoginError``."""
    try:
        document = json.loads(answer)
        # Both names are in use; the distribution specification calls for ``token``, OAuth 2 for ``access_token``.
        token = document.get("token") or document.get("access_token")
    except (AttributeError, json.JSONDecodeError):
        token = None
    if not isinstance(token, str):
        raise LoginError("the registry's token service gave no token")
    return token
