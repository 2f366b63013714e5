"""Resources that are questions about a token's holder, the caller, or a permission. Nothing of them is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deploy.local.apiserver.apimachinery.errors import bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field
from deploy.local.apiserver.authn.identity import Authenticator, Identity
from deploy.local.apiserver.authn.tokens import ISSUER, InvalidTokenError
from deploy.local.apiserver.resources.resource import ServedResource

Review = Callable[[Authenticator, Identity, ServedResource, JsonObject], JsonObject]
"""(authenticator, who asks, resource, question) -> the ``status`` that answers it."""


def _token_review(authenticator: Authenticator, _: Identity, __: ServedResource, given: JsonObject) -> JsonObject:
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


def _self_subject(_: Authenticator, caller: Identity, __: ServedResource, ___: JsonObject) -> JsonObject:
    return {"userInfo": caller.user_info()}


def _access(_: Authenticator, __: Identity, ___: ServedResource, ____: JsonObject) -> JsonObject:
    return {"allowed": True, "reason": "the local cluster allows everything to every authenticated user"}


def _rules(_: Authenticator, __: Identity, ___: ServedResource, ____: JsonObject) -> JsonObject:
    return {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }


REVIEWS: Final[dict[str, Review]] = {
    "tokenreviews.authentication.k8s.io": _token_review,
    "selfsubjectreviews.authentication.k8s.io": _self_subject,
    "selfsubjectaccessreviews.authorization.k8s.io": _access,
    "subjectaccessreviews.authorization.k8s.io": _access,
    "localsubjectaccessreviews.authorization.k8s.io": _access,
    "selfsubjectrulesreviews.authorization.k8s.io": _rules,
}
"""By resource key."""
