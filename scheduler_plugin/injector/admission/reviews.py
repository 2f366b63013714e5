"""AdmissionReviews (admission.k8s.io/v1): decoding and responses. Pure.

The response is a patch, a warning, or, only for pods that mention the agent's volumes, a refusal.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.objects import Json

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
LONGEST_WARNING: Final = 250
"""The API server cuts warnings at 256 characters."""


MOST_VALUES: Final = 100_000
"""Values in a pod, which take up to 100 times their length of memory. The largest pods have a tenth of it."""


class MalformedReviewError(ValueError):
    """The review is malformed; the message names the bad field."""


_NOTHING: Final = msgspec.Raw(b"null")


class _Request(msgspec.Struct, frozen=True):
    uid: str
    operation: str
    namespace: str = ""
    # Raw: decoded only if needed.
    object: msgspec.Raw = _NOTHING


class _Review(msgspec.Struct, frozen=True):
    api_version: Literal["admission.k8s.io/v1"] = msgspec.field(name="apiVersion")
    kind: Literal["AdmissionReview"]
    request: _Request


_REVIEW: Final = msgspec.json.Decoder(_Review)
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class PodReview:
    """A review of a new pod; ``pod`` is None if none is created, or it cannot be decoded. ``is_too_large``: it has more
    than ``MOST_VALUES`` values, and is not decoded.
    """

    uid: str
    namespace: str
    pod: Json | None
    is_too_large: bool = False


def read_review(body: bytes) -> PodReview:
    """Decode a review. Raises ``MalformedReviewError``."""
    try:
        request = _REVIEW.decode(body).request
    except (ValueError, RecursionError) as error:
        raise MalformedReviewError(field_message(error)) from None
    # The webhook may be registered for other operations by mistake.
    if request.operation != "CREATE":
        return PodReview(request.uid, request.namespace, None)
    pod = bytes(request.object)
    if _has_too_many_values(pod):
        return PodReview(request.uid, request.namespace, None, is_too_large=True)
    return PodReview(request.uid, request.namespace, _pod(pod))


_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')


def _has_too_many_values(pod: bytes) -> bool:
    # Without a second pass for nearly all pods: only scripts and data in strings have that many marks.
    return _marks(pod) > MOST_VALUES and _marks(_STRING.sub(b"", pod)) > MOST_VALUES


def _marks(json: bytes) -> int:
    # Each value but the first comes after one of these.
    return sum(map(json.count, (b",", b"{", b"[")))


def _pod(encoded: bytes) -> Json | None:
    try:
        # Allow it: the API server validates it anyway.
        return msgspec.json.decode(encoded, type=dict[str, object])
    except (ValueError, RecursionError):
        return None


def answer(uid: str, patch: Sequence[Json] = (), warning: str = "") -> bytes:
    """Allow the pod, with the operations of ``patch`` (RFC 6902); ``warning`` is shown to its creator."""
    response: Json = {"allowed": True}
    if patch:
        encoded = base64.b64encode(_ENCODER.encode(patch)).decode()
        # The API accepts only JSON Patch in base64.
        response |= {"patchType": "JSONPatch", "patch": encoded}
    if warning:
        response["warnings"] = [warning[:LONGEST_WARNING]]
    return _answer(uid, response)


def refusal(uid: str, why: str) -> bytes:
    """Refuse the pod because of ``why``."""
    return _answer(uid, {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": why}})


def _answer(uid: str, response: Json) -> bytes:
    return _ENCODER.encode({"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": uid, **response}})
