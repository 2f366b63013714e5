"""Errors of the API server, worded as by Kubernetes: a ``Status`` with code, reason, message and details.

Every refused request raises a ``StatusError``; only the HTTP layer (``server``) turns it into a response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject

REQUIRED: Final = "FieldValueRequired"
FORBIDDEN: Final = "FieldValueForbidden"
DUPLICATE: Final = "FieldValueDuplicate"


@dataclass(frozen=True, slots=True)
class Cause:
    """One error in a field. ``reason`` is one of Kubernetes' ``FieldValue...`` reasons."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that an error is about; unknown parts are empty."""

    resource: str = ""
    group: str = ""
    name: str = ""
    kind: str = ""

    @property
    def qualified(self) -> str:
        """``virtualmachines.vm.neon.tech``, or ``pods`` in the core group."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


_NO_SUBJECT: Final = Subject()


@dataclass(eq=False)
class StatusError(Exception):
    """A request was refused. ``code`` is the HTTP status, ``reason`` the machine-readable reason."""

    code: int
    reason: str
    message: str
    subject: Subject = _NO_SUBJECT
    causes: tuple[Cause, ...] = ()
    retry_after: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def status(self) -> JsonObject:
        """The ``Status`` object for the client."""
        # As in kube-apiserver: `Invalid` has the kind of the object, all other errors its resource.
        kind = self.subject.kind if self.reason == "Invalid" else self.subject.resource or self.subject.kind
        details: JsonObject = {
            "name": self.subject.name,
            "group": self.subject.group,
            "kind": kind,
            "causes": [
                {"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in self.causes
            ],
            "retryAfterSeconds": self.retry_after,
        }
        # Go omits empty fields.
        details = {key: value for key, value in details.items() if value}
        status: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }
        return {key: value for key, value in status.items() if key != "details" or value}


def not_found(subject: Subject) -> StatusError:
    """404: no such object."""
    return StatusError(404, "NotFound", f'{subject.qualified} "{subject.name}" not found', subject)


def no_such_path() -> StatusError:
    """404: no such resource is served."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(subject: Subject) -> StatusError:
    """409: the name is taken."""
    return StatusError(409, "AlreadyExists", f'{subject.qualified} "{subject.name}" already exists', subject)


def conflict(subject: Subject, why: str) -> StatusError:
    """409: the object is not in the state that the client expected."""
    message = f'Operation cannot be fulfilled on {subject.qualified} "{subject.name}": {why}'
    return StatusError(409, "Conflict", message, subject)


def modified(subject: Subject) -> StatusError:
    """409: the client's resourceVersion is not the newest."""
    return conflict(
        subject, "the object has been modified; please apply your changes to the latest version and try again"
    )


def invalid(subject: Subject, causes: Sequence[Cause]) -> StatusError:
    """422: the object is invalid; each cause names a field."""
    texts = [str(cause) for cause in causes]
    # Go prints a single error as it is, and several in brackets.
    listing = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    kind = f"{subject.kind}.{subject.group}" if subject.group else subject.kind
    return StatusError(422, "Invalid", f'{kind} "{subject.name}" is invalid: {listing}', subject, tuple(causes))


def bad_request(message: str) -> StatusError:
    """400: the request is malformed."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401: the request has no valid credential."""
    # HTTP requires this header with every 401.
    return StatusError(
        401, "Unauthorized", "Unauthorized", headers={"WWW-Authenticate": 'Bearer realm="local cluster"'}
    )


def forbidden(subject: Subject, why: str) -> StatusError:
    """403: the request is not allowed."""
    return StatusError(403, "Forbidden", f'{subject.qualified} "{subject.name}" is forbidden: {why}', subject)


def expired(message: str) -> StatusError:
    """410: the resourceVersion or continue token is older than the stored history."""
    return StatusError(410, "Expired", message)


def too_old(requested: int, oldest: int) -> StatusError:
    """410 of a watch: the history no longer has all changes after ``requested``."""
    return expired(f"too old resource version: {requested} ({oldest})")


def future_version(requested: int, current: int) -> StatusError:
    """504: the resourceVersion has not been reached yet; retry after a second."""
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    # client-go recognizes this case by the reason of the cause.
    cause = Cause("", "Too large resource version", "ResourceVersionTooLarge")
    return StatusError(504, "Timeout", message, causes=(cause,), retry_after=1)


def method_not_allowed() -> StatusError:
    """405: the resource does not support the verb."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(media_type: str, accepted: Sequence[str]) -> StatusError:
    """415: the media type of the body is not supported."""
    message = (
        f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
        f" (got {media_type!r})"
    )
    return StatusError(415, "UnsupportedMediaType", message)


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """406: no media type that the client accepts is supported."""
    return StatusError(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(accepted)}")


def too_many_requests(subject: Subject, why: str, retry_after: int) -> StatusError:
    """429: the client should retry after ``retry_after`` seconds."""
    return StatusError(429, "TooManyRequests", why, subject, retry_after=retry_after)
