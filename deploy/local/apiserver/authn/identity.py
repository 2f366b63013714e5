"""Identity of a caller: static tokens (the administrator) and service-account tokens.

There is no authorization: every authenticated user may do everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from deploy.local.apiserver.apimachinery.environment import Environment
from deploy.local.apiserver.apimachinery.errors import bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.authn.tokens import ISSUER, InvalidTokenError, Reference, TokenClaims, verify
from deploy.local.apiserver.storage.database import Key
from deploy.local.apiserver.storage.store import ObjectStore, StoredObject

AUTHENTICATED: Final = "system:authenticated"
_EXTRA: Final = "authentication.kubernetes.io"


@dataclass(frozen=True, slots=True)
class Identity:
    """A user, as Kubernetes describes users. ``audiences`` are those for which the credential is valid."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    audiences: tuple[str, ...] = ()

    def user_info(self) -> JsonObject:
        """The ``user`` of a TokenReview."""
        info: JsonObject = {"username": self.username}
        if self.uid:
            info["uid"] = self.uid
        info["groups"] = list(self.groups)
        if self.extra:
            info["extra"] = {key: list(values) for key, values in self.extra.items()}
        return info


ADMIN: Final = Identity("kubernetes-admin", "", ("system:masters", AUTHENTICATED))


class Authenticator:
    """Identifies the holder of a token."""

    def __init__(
        self, store: ObjectStore, environment: Environment, signing_key: bytes, static: Mapping[str, Identity]
    ) -> None:
        self._store = store
        self._environment = environment
        self._static = dict(static)
        self.signing_key = signing_key

    def caller(self, authorization: str) -> Identity | None:
        """The identity in an ``Authorization`` header; None if it is not valid."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        try:
            return self.identify(token.strip(), (ISSUER,))
        except InvalidTokenError:
            return None

    def identify(self, token: str, audiences: Sequence[str]) -> Identity:
        """The holder of ``token``. Raises ``InvalidTokenError``, also if it is valid for none of ``audiences``."""
        identity = self._static.get(token)
        if identity is not None:
            # A static token is not bound to an audience, so it is valid for all requested ones.
            return replace(identity, audiences=tuple(audiences))
        claims = verify(token, self.signing_key, self._environment.now().timestamp())
        shared = tuple(audience for audience in audiences if audience in claims.audiences)
        if not shared:
            raise InvalidTokenError(f"token audiences {list(claims.audiences)} is invalid for {list(audiences)}")
        # A token is valid only while its service account, and the pod that it is bound to, exist with the uids in it.
        self._check_alive("serviceaccounts", claims.namespace, claims.account, "service account")
        if claims.pod:
            self._check_alive("pods", claims.namespace, claims.pod, "pod")
        return _identity(claims, shared)

    def _check_alive(self, resource: str, namespace: str, reference: Reference, what: str) -> None:
        stored: StoredObject | None = self._store.get(Key(resource, namespace, reference.name))
        if stored is None or stored.body["metadata"]["uid"] != reference.uid:
            raise InvalidTokenError(f"{what} {namespace}/{reference.name} of the token no longer exists")


def _identity(claims: TokenClaims, audiences: tuple[str, ...]) -> Identity:
    extra: dict[str, Sequence[str]] = {f"{_EXTRA}/credential-id": (f"JTI={claims.token_id}",)}
    for word, reference in (("pod", claims.pod), ("node", claims.node)):
        if reference:
            extra[f"{_EXTRA}/{word}-name"] = (reference.name,)
            # If the node was gone when the token was issued, only its name is known.
            if reference.uid:
                extra[f"{_EXTRA}/{word}-uid"] = (reference.uid,)
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{claims.namespace}", AUTHENTICATED)
    return Identity(claims.username, claims.account.uid, groups, extra, audiences)


Review = Callable[[Authenticator, Identity, JsonObject], JsonObject]
"""Evaluates a review: (authenticator, caller, request body) -> the ``status`` of the response."""


def _token_review(authenticator: Authenticator, _: Identity, review: JsonObject) -> JsonObject:
    spec: JsonObject = review.get("spec") or {}
    token = spec.get("token")
    if not token or not isinstance(token, str):
        raise bad_request("token is required for TokenReview in authentication")
    # The default audience is the API server itself.
    audiences = spec.get("audiences") or [ISSUER]
    try:
        identity = authenticator.identify(token, audiences)
    except InvalidTokenError as error:
        # The request itself succeeds if the token is invalid.
        return {"user": {}, "error": str(error)}
    return {"authenticated": True, "user": identity.user_info(), "audiences": list(identity.audiences)}


_ALLOWED: Final = {"allowed": True, "reason": "the local cluster allows everything to every authenticated user"}
_RULES: Final = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
REVIEWS: Final[dict[str, Review]] = {
    "tokenreviews.authentication.k8s.io": _token_review,
    "selfsubjectreviews.authentication.k8s.io": lambda _, caller, __: {"userInfo": caller.user_info()},
    "selfsubjectaccessreviews.authorization.k8s.io": lambda *_: _ALLOWED,
    "subjectaccessreviews.authorization.k8s.io": lambda *_: _ALLOWED,
    "localsubjectaccessreviews.authorization.k8s.io": lambda *_: _ALLOWED,
    "selfsubjectrulesreviews.authorization.k8s.io": lambda *_: _RULES,
}
"""Reviews by resource key."""
