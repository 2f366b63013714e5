"""What an HPA or a VPA of others was before a group changed it, so that it can be put back (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, name_of, text, version_of
from protocol.kubernetes.resources import Resource
from protocol.names import ANNOTATION_ORIGINAL, ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY
from protocol.units import QuantityError, parse_quantity
from scheduler_plugin.groups.objects.writes import Write, difference

LARGEST: Final = 64 * 1024
"""The largest record, in characters: all annotations of an object together may have 256 KiB."""


class TooLargeError(ValueError):
    """The object cannot be put back later, because its record would be too large; it is not changed then."""


@dataclass(frozen=True, slots=True)
class Original:
    """The record: kind and name of the group, and fields of the spec ``before`` it and as ``written`` by it.

    A field that is in ``written`` alone was not there before; None in ``written`` is one that was removed.
    """

    kind: str
    name: str
    before: JsonObject
    written: JsonObject

    @property
    def text(self) -> str:
        """The annotation. Raises ``TooLargeError``."""
        group = {"kind": self.kind, "name": self.name}
        body = {"group": group, "before": dict(self.before), "written": dict(self.written)}
        encoded = json.dumps(body, separators=(",", ":"), sort_keys=True)
        if len(encoded) > LARGEST:
            raise TooLargeError(f"its spec has more than {LARGEST // 1024} KiB and could not be put back")
        return encoded


def original_of(found: JsonObject) -> Original | None:
    """The record of an HPA or a VPA; None if it has none that can be read."""
    try:
        body = json.loads(annotations_of(found)[ANNOTATION_ORIGINAL])
    except (KeyError, ValueError, RecursionError):
        return None
    group = child(body, "group") if isinstance(body, dict) else {}
    if not text(group, "kind") or not text(group, "name"):
        return None
    return Original(text(group, "kind"), text(group, "name"), child(body, "before"), child(body, "written"))


def changed(found: JsonObject, group: JsonObject, fields: JsonObject) -> Original:
    """The record once ``group`` has written ``fields`` to the spec of the object."""
    record, spec = original_of(found), child(found, "spec")
    before = {} if record is None else dict(record.before)
    written = {} if record is None else dict(record.written)
    for name, value in fields.items():
        # On the first write, or after someone else has changed the field, the present value is what goes back later.
        if name not in written or not _is(spec.get(name), written[name]):
            before.pop(name, None)
            before |= {name: spec[name]} if name in spec else {}
        written[name] = value
    return Original(text(group, "kind"), name_of(group).name, before, written)


def adapted(what: str, resource: Resource, found: JsonObject, group: JsonObject, fields: Json) -> Write:
    """Sets fields of an adopted object's spec, with the record of what they were. Raises ``TooLargeError``."""
    # The record is written in the same patch as the change, so no crash comes between.
    record: Json = {"annotations": {ANNOTATION_ORIGINAL: changed(found, group, fields).text}}
    return Write(what, resource, name_of(found), {"metadata": record, "spec": fields}, version=version_of(found))


def put_back(resource: Resource, found: JsonObject) -> Write | None:
    """Makes the object what it was, but for what others have changed since; None if it has no record."""
    record, spec = original_of(found), child(found, "spec")
    if record is None:
        return None
    restored = dict(spec)
    for name, value in record.written.items():
        # A field that others have changed since is theirs and stays.
        if _is(spec.get(name), value):
            restored.pop(name, None)
            restored |= {name: record.before[name]} if name in record.before else {}
    _keep_in_order(spec, restored)
    # null in a merge patch removes an annotation.
    ours = (ANNOTATION_ORIGINAL, ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY)
    body: Json = {"metadata": {"annotations": dict.fromkeys(ours)}}
    if patch := difference(spec, restored):
        body["spec"] = patch
    return Write("original", resource, name_of(found), body, version=version_of(found))


def _keep_in_order(spec: JsonObject, restored: Json) -> None:
    """Adjusts a bound that goes back to one that someone else has set since: the API refuses an HPA with min > max."""
    least, most = restored.get("minReplicas"), restored.get("maxReplicas")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        # If `maxReplicas` is the bound that goes back, it gives way; otherwise `minReplicas` does.
        restored |= {"maxReplicas": least} if most != spec.get("maxReplicas") else {"minReplicas": most}


def _is(found: object, written: object) -> bool:
    """Return True if a field still has what was written; the API may have filled in more, or spelled an amount
    otherwise.
    """
    if isinstance(found, Mapping) and isinstance(written, Mapping):
        return all(_is(found.get(name), value) for name, value in written.items())
    if isinstance(found, list) and isinstance(written, list):
        return len(found) == len(written) and all(map(_is, found, written))
    if found == written:
        return True
    if not isinstance(found, str | int | float) or not isinstance(written, str | int | float):
        return False
    try:
        # `1000m` and `1` are the same amount.
        return parse_quantity(found) == parse_quantity(written)
    except QuantityError:
        return False
