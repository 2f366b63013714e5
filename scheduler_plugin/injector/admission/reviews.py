"""Decoding of AdmissionReviews (admission.k8s.io/v1), and encoding of responses. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.objects import Json

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
LONGEST_WARNING: Final = 250
"""The API server truncates warnings to 256 characters."""


LONGEST_UID: Final = 128
LONGEST_NAMESPACE: Final = 63

MOST_VALUES: Final = 100_000
"""Maximum number of values in a pod. Decoded they take up to 100 times their length; the largest pods have a tenth."""


class MalformedReviewError(ValueError):
    """The review is malformed; the message names the invalid field."""


_NOTHING: Final = msgspec.Raw(b"null")


class _Request(msgspec.Struct, frozen=True):
    # Bounded like in the API, because anyone may send a review, and both are repeated: in a response, in log lines.
    uid: Annotated[str, msgspec.Meta(max_length=LONGEST_UID)]
    operation: str
    namespace: Annotated[str, msgspec.Meta(max_length=LONGEST_NAMESPACE)] = ""
    # Raw, because it is decoded only if needed.
    object: msgspec.Raw = _NOTHING


class _Review(msgspec.Struct, frozen=True):
    api_version: Literal["admission.k8s.io/v1"] = msgspec.field(name="apiVersion")
    kind: Literal["AdmissionReview"]
    request: _Request


_REVIEW: Final = msgspec.json.Decoder(_Review)
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class PodReview:
    """A review. ``pod`` is None if no pod is created, or if it cannot be decoded.

    If ``is_too_large``, the pod has more than ``MOST_VALUES`` values and is not decoded.
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
    # Nearly all pods need no second pass: only with scripts or data in strings they have that many marks.
    return _marks(pod) > MOST_VALUES and _marks(_STRING.sub(b"", pod)) > MOST_VALUES


def _marks(json: bytes) -> int:
    # Each value except the first follows one of these.
    return sum(map(json.count, (b",", b"{", b"[")))


def _pod(encoded: bytes) -> Json | None:
    try:
        # An invalid pod is allowed, because the API server validates it anyway.
        return msgspec.json.decode(encoded, type=dict[str, object])
    except (ValueError, RecursionError):
        return None


def answer(uid: str, patch: Sequence[Json] = (), warning: str = "") -> bytes:
    """Allow the pod, with the operations of ``patch`` (RFC 6902); ``warning`` is shown to its creator."""
    response: Json = {"allowed": True}
    if patch:
        encoded = base64.b64encode(_ENCODER.encode(patch)).decode()
        # The API accepts only a JSON Patch in base64.
        response |= {"patchType": "JSONPatch", "patch": encoded}
    if warning:
        response["warnings"] = [warning[:LONGEST_WARNING]]
    return _answer(uid, response)


def refusal(uid: str, why: str) -> bytes:
    """Refuse the pod because of ``why``."""
    return _answer(uid, {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": why}})


def _answer(uid: str, response: Json) -> bytes:
    return _ENCODER.encode({"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": uid, **response}})
