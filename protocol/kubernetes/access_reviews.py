"""Reviews of bearer tokens by the API server: request bodies and answers (pure).

A TokenReview identifies a token's owner; a SubjectAccessReview says if that user may list VirtualMachines, or get pods.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from protocol.kubernetes.objects import Json, JsonObject, child, flag, text
from protocol.kubernetes.resources import PODS, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, VIRTUAL_MACHINES

_ACCOUNT: Final = "system:serviceaccount:"
_BOUND: Final = "authentication.kubernetes.io"
LONGEST_TOKEN: Final = 16 * 1024
"""Maximum length in characters. Real tokens have about 1,300."""


class _Claims(msgspec.Struct, frozen=True):
    sub: str = ""
    aud: list[str] | str = ""


def token_review(token: str, audience: str = "") -> JsonObject:
    """The body of a TokenReview for ``token``; an empty ``audience`` is the API server's own.

    >>> token_review("a.b.c", "autoscale-scheduler")["spec"]
    {'token': 'a.b.c', 'audiences': ['autoscale-scheduler']}
    """
    spec: Json = {"token": token, "audiences": [audience]} if audience else {"token": token}
    return {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": spec}


def user_in(review: JsonObject, audience: str = "") -> JsonObject | None:
    """The user that a TokenReview identified; None if the token is not valid for ``audience``.

    >>> review = {"status": {"authenticated": True, "audiences": ["page"], "user": {"username": "ann"}}}
    >>> user_in(review, "page"), user_in(review, "scheduler")
    ({'username': 'ann'}, None)
    """
    status = child(review, "status")
    user = child(status, "user")
    named = status.get("audiences")
    # An API server without support for audiences omits the field and has not checked them.
    accepts = not audience or (isinstance(named, list) and audience in named)
    return user if flag(status, "authenticated") and accepts and text(user, "username") else None


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """The owner of a token. ``account`` is ``namespace:name``; the other fields are the objects it is bound to.

    ``by_address``: without a token, the pod was identified by its address, and ``account`` names it.
    """

    account: str
    namespace: str
    pod: str | None = None
    pod_uid: str | None = None
    node: str | None = None
    by_address: bool = False


def identity_in(review: Mapping[str, object], audience: str) -> CallerIdentity | None:
    """The service account that a TokenReview identified; None if the token is not valid for ``audience``.

    >>> user = {"username": "system:serviceaccount:shop:vm-agent"}
    >>> identity_in({"status": {"authenticated": True, "audiences": ["page"], "user": user}}, "page").account
    'shop:vm-agent'
    """
    user = user_in(review, audience) or {}
    name, extra = text(user, "username"), child(user, "extra")
    if not name.startswith(_ACCOUNT):
        return None
    account = name.removeprefix(_ACCOUNT)
    # The API server sets these only for tokens bound to a pod or a node.
    pod, uid, node = (_only(extra.get(f"{_BOUND}/{key}")) for key in ("pod-name", "pod-uid", "node-name"))
    return CallerIdentity(account, account.partition(":")[0], pod, uid, node)


def _only(values: object) -> str | None:
    # The API server never sends several values; they would be ambiguous.
    return values[0] if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str) else None


class Scope(NamedTuple):
    """The databases that a permission covers: VirtualMachines or pods, of one namespace or (empty) of all."""

    namespace: str = ""
    of_pods: bool = False

    @property
    def everywhere(self) -> Scope:
        """The same kind in all namespaces."""
        return Scope(of_pods=self.of_pods)


def access_review(user: JsonObject, scope: Scope) -> JsonObject:
    """The body of a SubjectAccessReview: may ``user`` read about the databases of ``scope`` (list VMs, or get pods)?

    >>> access_review({"username": "ann"}, Scope("shop", of_pods=True))["spec"]["resourceAttributes"]
    {'verb': 'get', 'group': '', 'resource': 'pods', 'namespace': 'shop'}
    """
    verb, kind = ("get", PODS) if scope.of_pods else ("list", VIRTUAL_MACHINES)
    resource: Json = {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": scope.namespace}
    spec: Json = {
        "user": text(user, "username"),
        "uid": text(user, "uid"),
        # The API requires a list even if the user is in no group.
        "groups": user.get("groups") or [],
        "extra": child(user, "extra"),
        "resourceAttributes": resource,
    }
    return {"apiVersion": SUBJECT_ACCESS_REVIEWS.api_version, "kind": SUBJECT_ACCESS_REVIEWS.kind, "spec": spec}


def is_allowed(review: JsonObject) -> bool:
    """Return True if a SubjectAccessReview allows the request.

    >>> is_allowed({"status": {"allowed": True}}), is_allowed({})
    (True, False)
    """
    return flag(review, "status", "allowed")


def claims_audience(token: str, audience: str) -> bool:
    """Return True if a JSON Web Token claims ``audience``. This only saves reviews; it proves nothing.

    >>> claims_audience("no token", "autoscale-scheduler")
    False
    """
    claims = _claims(token)
    # A JSON Web Token may name one audience or several.
    return audience == claims.aud if isinstance(claims.aud, str) else audience in claims.aud


def account_in(token: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that a JSON Web Token claims; None for any other user.

    >>> body = base64.urlsafe_b64encode(b'{"sub":"system:serviceaccount:shop:vm-agent"}').decode()
    >>> account_in(f"head.{body}.signature"), account_in("no token")
    (('shop', 'vm-agent'), None)
    """
    parts = _claims(token).sub.split(":")
    # The subject of a service account is system:serviceaccount:NAMESPACE:NAME.
    return (parts[2], parts[3]) if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] else None


def _claims(token: str) -> _Claims:
    # A very long text is not a token, and not worth decoding.
    segments = token.split(".") if len(token) <= LONGEST_TOKEN else []
    if len(segments) != 3:
        return _Claims()
    try:
        # JSON Web Tokens omit the padding.
        body = base64.urlsafe_b64decode(segments[1] + "=" * (-len(segments[1]) % 4))
        return msgspec.json.decode(body, type=_Claims)
    except (ValueError, RecursionError):
        return _Claims()
