"""What a group wants written, as plain data, and the smallest patch that makes one object of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.kubernetes.objects import Json, JsonObject
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName


@dataclass(frozen=True, slots=True)
class Write:
    """One write. ``what`` is a word for logs and metrics, such as ``replicas``.

    A patch with a ``version`` is refused (409) if the object is no longer at that resourceVersion. ``merges_lists``: a
    strategic merge patch, which finds containers by name. ``creates``: the object is created, ``subresource`` unused.
    """

    what: str
    resource: Resource
    name: ObjectName
    body: Json
    subresource: str = ""
    version: str = ""
    creates: bool = False
    merges_lists: bool = False

    @property
    def path(self) -> str:
        """Path that the write goes to."""
        if self.creates:
            return self.resource.path(self.name.namespace)
        return self.resource.path(self.name.namespace, self.name.name, self.subresource)

    @property
    def guarded_body(self) -> Json:
        """The body, with the version that it is for."""
        if not self.version:
            return self.body
        metadata = self.body.get("metadata")
        fields = dict(metadata) if isinstance(metadata, Mapping) else {}
        return {**self.body, "metadata": {**fields, "resourceVersion": self.version}}


def difference(old: JsonObject, new: JsonObject) -> Json:
    """The merge patch (RFC 7386) that makes ``new`` of ``old``; empty if they are the same.

    >>> difference({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}})
    {'a': {'c': 4}, 'd': None}
    """
    patch: Json = {}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := difference(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = dict(value) if isinstance(value, Mapping) else value
    # RFC 7386: null removes a field.
    return patch | {key: None for key in old if key not in new}
