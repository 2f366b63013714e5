"""Kubernetes objects as plain JSON, with accessors that never raise.

- An object is the API's JSON. A field that is missing, null or of the wrong type reads as empty.
- ``number`` orders resource versions by age, which works for API servers with etcd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.messages import ObjectName

Json = dict[str, object]
"""One JSON object."""

JsonObject = Mapping[str, object]
"""One JSON object that is only read."""

# Digits of the largest 64-bit version.
_LONGEST_VERSION = 20


def child(source: JsonObject, *path: str) -> Json:
    """The JSON object at ``path``; empty if there is none.

    >>> child({"metadata": {"labels": {"a": "b"}}}, "metadata", "labels")
    {'a': 'b'}
    >>> child({"metadata": 7}, "metadata")
    {}
    """
    value = _leaf(source, path)
    # Fast path for ``dict``: ``isinstance`` with an abstract type is ten times as slow.
    return dict(value) if type(value) is dict or isinstance(value, Mapping) else {}


def _leaf(source: JsonObject, path: tuple[str, ...]) -> object:
    value: object = source
    for step in path:
        value = value.get(step) if type(value) is dict or isinstance(value, Mapping) else None
    return value


def text(source: JsonObject, *path: str) -> str:
    """The text at ``path``; empty if there is none.

    >>> text({"status": {"phase": "Running"}}, "status", "phase")
    'Running'
    """
    value = _leaf(source, path)
    return value if isinstance(value, str) else ""


def shortened(text: str, limit: int = 300) -> str:
    """``text``, truncated to ``limit`` characters: a field of an object may have a million.

    >>> shortened("phase", 5), shortened("phases", 5)
    ('phase', 'phas…')
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def texts(source: JsonObject, *path: str) -> dict[str, str]:
    """The string mapping at ``path`` (labels, annotations, selectors).

    >>> texts({"labels": {"a": "b", "c": 1}}, "labels")
    {'a': 'b'}
    """
    value = _leaf(source, path)
    if type(value) is dict or isinstance(value, Mapping):
        return {key: value for key, value in value.items() if isinstance(value, str)}
    return {}


def texts_at(source: JsonObject, *path: str) -> list[str]:
    """The strings of the list at ``path``; other elements are skipped.

    >>> texts_at({"verbs": ["get", 7, "list"]}, "verbs")
    ['get', 'list']
    """
    value = _leaf(source, path)
    return [part for part in value if isinstance(part, str)] if isinstance(value, list) else []


def integer(source: JsonObject, *path: str) -> int:
    """The integer at ``path``; 0 if there is none.

    >>> integer({"spec": {"replicas": 3}}, "spec", "replicas"), integer({"spec": {"replicas": ""}}, "spec", "replicas")
    (3, 0)
    """
    value = _leaf(source, path)
    # ``bool`` is an int in Python.
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def flag(source: JsonObject, *path: str) -> bool:
    """Return True if the value at ``path`` is ``true``.

    >>> flag({"spec": {"unschedulable": True}}, "spec", "unschedulable"), flag({}, "spec", "unschedulable")
    (True, False)
    """
    return _leaf(source, path) is True


def items(source: JsonObject, *path: str) -> list[Json]:
    """The JSON objects in the list at ``path``; other elements are skipped.

    >>> items({"items": [{"a": 1}, None, {"b": 2}]}, "items")
    [{'a': 1}, {'b': 2}]
    """
    value = _leaf(source, path)
    # A string is a sequence, too.
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return []
    return [dict(item) for item in value if isinstance(item, Mapping)]


def name_of(source: JsonObject) -> ObjectName:
    """Namespace (empty for cluster-wide kinds) and name.

    >>> str(name_of({"metadata": {"namespace": "default", "name": "db"}}))
    'default/db'
    """
    return ObjectName(text(source, "metadata", "namespace"), text(source, "metadata", "name"))


def uid_of(source: JsonObject) -> str:
    """The object's UID, which distinguishes it from others of the same name.

    >>> uid_of({"metadata": {"uid": "u-1"}})
    'u-1'
    """
    return text(source, "metadata", "uid")


def version_of(source: JsonObject) -> str:
    """The object's resourceVersion; empty if missing.

    >>> version_of({"metadata": {"resourceVersion": "42"}})
    '42'
    """
    return text(source, "metadata", "resourceVersion")


def number(version: object) -> int:
    """A resourceVersion as a number that increases over time; 0 if it is not a number.

    >>> number("42"), number("opaque"), number(None)
    (42, 0, 0)
    """
    if type(version) is str:  # the common case
        digits = version
    else:
        digits = str(version) if isinstance(version, (str, int)) and not isinstance(version, bool) else ""
    # By the API's contract, a version is opaque. Check the length first, because int() of a very long text is slow.
    return int(digits) if len(digits) <= _LONGEST_VERSION and digits.isascii() and digits.isdigit() else 0


def labels_of(source: JsonObject) -> dict[str, str]:
    """The object's labels.

    >>> labels_of({"metadata": {"labels": {"app": "db"}}})
    {'app': 'db'}
    """
    return texts(source, "metadata", "labels")


def annotations_of(source: JsonObject) -> dict[str, str]:
    """The object's annotations.

    >>> annotations_of({"metadata": {}})
    {}
    """
    return texts(source, "metadata", "annotations")


def controller_of(source: JsonObject) -> Json:
    """The owner reference of the object's controller; empty if there is none.

    >>> controller_of({"metadata": {"ownerReferences": [{"name": "a"}, {"name": "b", "controller": True}]}})
    {'name': 'b', 'controller': True}
    """
    return next((owner for owner in items(source, "metadata", "ownerReferences") if flag(owner, "controller")), {})


def is_terminating(source: JsonObject) -> bool:
    """Return True if deletion of the object has begun.

    >>> is_terminating({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    True
    """
    return bool(text(source, "metadata", "deletionTimestamp"))


def node_of(pod: JsonObject) -> str:
    """The node that a pod is bound to; empty if it is not bound.

    >>> node_of({"spec": {"nodeName": "n1"}})
    'n1'
    """
    return text(pod, "spec", "nodeName")


def pod_phase(pod: JsonObject) -> str:
    """The pod's phase: Pending, Running, Succeeded or Failed.

    >>> pod_phase({"status": {"phase": "Pending"}})
    'Pending'
    """
    return text(pod, "status", "phase")


def has_finished(pod: JsonObject) -> bool:
    """Return True if the pod has ended and will not run again.

    >>> has_finished({"status": {"phase": "Failed"}})
    True
    """
    return pod_phase(pod) in {"Succeeded", "Failed"}


def selects(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    """Return True if a label selector (``matchLabels``, ``matchExpressions``) matches ``labels``. Here an empty one
    matches nothing.

    >>> selects({"matchLabels": {"app": "web"}}, {"app": "web", "tier": "1"}), selects({}, {"app": "web"})
    (True, False)
    """
    equal, expressions = texts(selector, "matchLabels"), items(selector, "matchExpressions")
    if not equal and not expressions:
        return False
    return equal.items() <= labels.items() and all(_holds(expression, labels) for expression in expressions)


MAX_REQUIREMENTS: Final = 100
MAX_VALUES: Final = 1000


def is_large_selector(selector: JsonObject) -> bool:
    """Return True if a label selector has more requirements or values than to be kept and matched with many objects.

    Anyone may write megabytes of them.

    >>> is_large_selector({"matchExpressions": [{"key": "a", "operator": "Exists"}] * 101}), is_large_selector({})
    (True, False)
    """
    expressions = items(selector, "matchExpressions")
    values = [expression.get("values") for expression in expressions]
    return (
        len(expressions) > MAX_REQUIREMENTS
        or len(texts(selector, "matchLabels")) > MAX_REQUIREMENTS
        or sum(len(listed) for listed in values if isinstance(listed, list)) > MAX_VALUES
    )


def _holds(requirement: JsonObject, labels: Mapping[str, str]) -> bool:
    key, operator, values = text(requirement, "key"), text(requirement, "operator"), requirement.get("values")
    if operator in {"Exists", "DoesNotExist"}:
        return (key in labels) is (operator == "Exists")
    is_among = labels.get(key) in (values if isinstance(values, list) else ())
    # Like in the API, `NotIn` also matches a pod without the label.
    return is_among if operator == "In" else operator == "NotIn" and not is_among
