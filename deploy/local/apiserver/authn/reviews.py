"""Resources that are questions about a token's holder, the caller, or a permission. Nothing of them is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deploy.local.apiserver.apimachinery.errors import bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field
from deploy.local.apiserver.authn.identity import Authenticator, Identity
from deploy.local.apiserver.authn.tokens import ISSUER, InvalidTokenError

Review = Callable[[Authenticator, Identity, JsonObject], JsonObject]
"""(authenticator, who asks, question) -> the ``status`` that answers it."""


def _token_review(authenticator: Authenticator, _: Identity, given: JsonObject) -> JsonObject:
    token = field(given, ("spec", "token"))
    if not token or not isinstance(token, str):
        raise bad_request("token is required for TokenReview in authentication")
    # The default audience is the API server itself.
    audiences = field(given, ("spec", "audiences")) or [ISSUER]
    try:
        identity = authenticator.identify(token, audiences)
    except InvalidTokenError as error:
        # A token that is not valid is an answer, not a fault of the request.
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
"""By resource key."""
