"""Parsing of requests: path, query and body. Pure.

Invalid requests raise 400, 404, 406, 415 or 422.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from deploy.local.apiserver.apimachinery import errors
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, NotJsonError, decode, encode, field
from deploy.local.apiserver.apimachinery.media_types import APPLY_PATCH, JSON, PROTOBUF, YAML
from deploy.local.apiserver.apimachinery.protobuf import decode_protobuf
from deploy.local.apiserver.registry.api import DeleteOptions, RequestTarget, WriteOptions
from deploy.local.apiserver.registry.listing import ListOptions
from deploy.local.apiserver.registry.watching import DEFAULT_WATCH_TIMEOUT, WatchOptions
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.schema.shapes import check_shape
from protocol.durations import DurationError, parse_duration
from protocol.yaml_text import read_yaml

# The spellings that Go's ParseBool accepts as true.
_TRUE: Final = frozenset({"true", "1", "True", "TRUE", "t", "T"})
_VALIDATIONS: Final = frozenset({"Ignore", "Warn", "Strict"})

Query = Mapping[str, str]

_MATCH: Final = "resourceVersionMatch"
_INITIAL: Final = "sendInitialEvents"
_EXACT: Final = "Exact"
_NOT_OLDER: Final = "NotOlderThan"


class Form(Enum):
    """Form of objects in a response."""

    PLAIN = "plain"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"


_FORMS: Final = {
    "": Form.PLAIN,
    "Table": Form.TABLE,
    "PartialObjectMetadata": Form.PARTIAL,
    "PartialObjectMetadataList": Form.PARTIAL,
}


def target_of(catalog: Catalog, path: str) -> RequestTarget:
    """The target of a path below ``/api`` or ``/apis``. Raises a 404."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise errors.no_such_path()
    namespace = ""
    # `namespaces/NAME/status` is the status of a namespace, while `namespaces/NAME/pods` is a collection in it.
    if rest[0] == "namespaces" and len(rest) >= 3 and catalog.find(group, version, rest[2]):
        namespace, rest = rest[1], rest[2:]
    resource = catalog.find(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        raise errors.no_such_path()
    target = RequestTarget(resource, namespace, *rest[1:])
    if target.subresource and target.subresource not in resource.subresources:
        raise errors.no_such_path()
    if target.name and resource.namespaced and not namespace:
        raise errors.no_such_path()
    return target


def form_of(accept: str) -> Form:
    """The first supported form of an ``Accept`` header. Raises a 406."""
    if not accept:
        return Form.PLAIN
    for media_range in accept.split(","):
        kind, *parameters = (part.strip() for part in media_range.split(";"))
        options = dict(part.partition("=")[::2] for part in parameters)
        if kind in {JSON, "*/*", "application/*"} and options.get("as", "") in _FORMS:
            return _FORMS[options.get("as", "")]
    raise errors.not_acceptable((JSON,))


def flag(query: Query, name: str) -> bool:
    """A boolean parameter; false if absent."""
    return query.get(name, "") in _TRUE


def check_timeout(query: Query) -> None:
    """Raise a 400 if ``timeout`` is invalid. A valid one has no effect, because all calls return immediately."""
    text = query.get("timeout", "")
    if not text or flag(query, "watch"):
        return
    try:
        parse_duration(text)
    except DurationError as error:
        raise errors.bad_request(f"timeout: {error}") from None
    # Go's durations require a unit, except for zero.
    if text.isdecimal() and int(text):
        raise errors.bad_request(f"timeout: {text!r} has no unit")


def _number(query: Query, name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise errors.bad_request(f"{name}: expected a whole number, got {text!r}") from None


def _dry_run(value: str) -> bool:
    if value not in {"", "All"}:
        raise errors.bad_request(f'dryRun: Unsupported value: "{value}": supported values: "All"')
    return bool(value)


def write_options(query: Query) -> WriteOptions:
    """Options of a create, update or patch. Raises a 400."""
    validation = query.get("fieldValidation") or "Warn"
    if validation not in _VALIDATIONS:
        raise errors.bad_request(f'fieldValidation: Unsupported value: "{validation}"')
    return WriteOptions(
        _dry_run(query.get("dryRun", "")), query.get("fieldManager", ""), validation, flag(query, "force")
    )


def delete_options(query: Query, body: JsonObject) -> DeleteOptions:
    """Options of a deletion, from the body or, if absent there, the query. Raises a 400."""
    # An Eviction has the options in a field.
    if body.get("kind") == "Eviction":
        body = body.get("deleteOptions") or {}
    grace = body.get("gracePeriodSeconds")
    if grace is None:
        grace = _number(query, "gracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or grace < 0):
        raise errors.bad_request(f"gracePeriodSeconds: expected a whole number of zero or more, got {grace!r}")
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or ""
    # The older form of propagationPolicy.
    if body.get("orphanDependents") or flag(query, "orphanDependents"):
        policy = "Orphan"
    if policy not in {"", "Background", "Foreground", "Orphan"}:
        raise errors.bad_request(
            f'propagationPolicy: Unsupported value: "{policy}": supported values: "Background", "Foreground", "Orphan"'
        )
    dry = body.get("dryRun") or ([query["dryRun"]] if "dryRun" in query else [])
    return DeleteOptions(
        dry_run=any(_dry_run(word) for word in dry),
        grace=grace,
        propagation=policy,
        uid=field(body, ("preconditions", "uid")) or "",
        resource_version=field(body, ("preconditions", "resourceVersion")) or "",
    )


def _check_combination(query: Query, is_watch: bool) -> None:
    """Raise a 422 with all invalid combinations of the options of a list or a watch."""
    causes = [
        errors.Cause(name, f"Forbidden: {why}", errors.FORBIDDEN)
        for name, why in (_watch_faults if is_watch else _list_faults)(query)
    ]
    match = query.get(_MATCH, "")
    if match not in {"", _EXACT, _NOT_OLDER}:
        words = f'Unsupported value: "{match}": supported values: "{_EXACT}", "{_NOT_OLDER}", ""'
        causes.append(errors.Cause(_MATCH, words, "FieldValueNotSupported"))
    if causes:
        raise errors.invalid(errors.Subject("", "meta.k8s.io", "", "ListOptions"), causes)


def _list_faults(query: Query) -> Iterator[tuple[str, str]]:
    # The messages are kube-apiserver's, down to the lower-case "exact".
    match, version = query.get(_MATCH, ""), query.get("resourceVersion", "")
    if _INITIAL in query:
        yield _INITIAL, "sendInitialEvents is forbidden for list"
    if match and not version:
        yield _MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"
    if match == _EXACT and version == "0":
        yield _MATCH, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'


def _watch_faults(query: Query) -> Iterator[tuple[str, str]]:
    match = query.get(_MATCH, "")
    if _INITIAL in query and match != _NOT_OLDER:
        yield _MATCH, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    if match and _INITIAL not in query:
        yield _MATCH, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"


def list_options(query: Query) -> ListOptions:
    """Options of a list. Raises a 400 or 422."""
    _check_combination(query, is_watch=False)
    return ListOptions(
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        # A negative limit means no limit.
        limit=max(0, _number(query, "limit") or 0),
        token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
    )


def watch_options(query: Query) -> WatchOptions:
    """Options of a watch. Raises 400 or 422."""
    _check_combination(query, is_watch=True)
    timeout = _number(query, "timeoutSeconds")
    return WatchOptions(
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        resource_version=query.get("resourceVersion", ""),
        bookmarks=flag(query, "allowWatchBookmarks"),
        initial=flag(query, "sendInitialEvents") if "sendInitialEvents" in query else None,
        timeout=float(timeout or DEFAULT_WATCH_TIMEOUT),
    )


def _yaml(raw: bytes) -> Any:
    # JSON is valid YAML, but the JSON decoder is faster.
    if raw.lstrip()[:1] == b"{":
        return decode(raw)
    try:
        # Through JSON, which converts YAML-only types, such as dates, to strings.
        return decode(encode(read_yaml(raw.decode())))
    except (UnicodeDecodeError, TypeError, ValueError, OverflowError) as error:
        raise NotJsonError(str(error)) from None


_READERS: Final[dict[str, Callable[[bytes], Any]]] = {
    YAML: _yaml,
    APPLY_PATCH: _yaml,
    PROTOBUF: decode_protobuf,
}
"""Decoders by media type; all other accepted types are JSON."""


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request and its media type."""

    raw: bytes
    media_type: str

    @classmethod
    def of(cls, raw: bytes, content_type: str) -> Body:
        """The body with the media type of its ``Content-Type`` header, without parameters."""
        return cls(raw, content_type.partition(";")[0].strip().lower())

    def value(self, accepted: Sequence[str]) -> Any:
        """The decoded body. Raises a 415 if the media type is not in ``accepted``, a 400 if the body is malformed."""
        kind = self.media_type or JSON
        if kind not in accepted:
            raise errors.unsupported_media_type(self.media_type, accepted)
        try:
            return _READERS.get(kind, decode)(self.raw)
        except NotJsonError as error:
            raise errors.bad_request(f"the body of the request is not readable as {kind}: {error}") from None

    def object(self, shape: JsonObject | None = None) -> JsonObject:
        """The object in the body. Raises a 400 if it is not an object of this ``shape``; otherwise like ``value``."""
        value = self.value((JSON, YAML, PROTOBUF))
        if not isinstance(value, dict):
            raise errors.bad_request(f"the body of the request must be an object, got {type(value).__name__}")
        if shape is not None:
            check_shape(value, shape)
        return value

    def optional_object(self, shape: JsonObject) -> JsonObject:
        """Like ``object``, but empty if there is no body."""
        return self.object(shape) if self.raw.strip() else {}
