"""A small API: VMs, migrations and pods by name, with versions and finalizers.

Objects are replaced and never altered, so an old copy stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.kubernetes.objects import Json, child, is_terminating, name_of, text, uid_of

Objects = dict[str, Json]


class RefusedError(Exception):
    """The API server refuses: the object has changed since it was read, or was deleted."""


class FakeApi:
    """The API to which all components of a small world write."""

    def __init__(self) -> None:
        self.vms: Objects = {}
        self.migrations: Objects = {}
        self.pods: Objects = {}
        self._count = 0

    def _next(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}-{self._count}"

    @staticmethod
    def _version(found: Mapping[str, object]) -> str:
        return text(found, "metadata", "resourceVersion")

    def _is_current(self, vm: Json) -> bool:
        return self._version(self.vms.get("db", {})) == self._version(vm)

    def _put(self, kind: Objects, body: Json) -> None:
        metadata = {**child(body, "metadata"), "resourceVersion": self._next("v")}
        kind[name_of(body).name] = {**body, "metadata": metadata}

    def _create_pod(self, pod: Json) -> None:
        name = name_of(pod).name
        if name not in self.pods:
            metadata = {**child(pod, "metadata"), "uid": self._next("uid")}
            self._put(self.pods, {**pod, "metadata": metadata, "status": {"phase": "Pending"}})

    def _patch(self, kind: Objects, seen: Json, *, checked: bool = True, **parts: Json) -> None:
        now = kind.get(name_of(seen).name)
        if now is None or uid_of(now) != uid_of(seen) or (checked and self._version(now) != self._version(seen)):
            raise RefusedError
        changed = dict(now)
        for part, values in parts.items():
            merged = {**child(now, part), **values}
            changed[part] = {key: value for key, value in merged.items() if value is not None}
        self._put(kind, changed)
        self._drop_released(kind, name_of(seen).name)

    def _delete(self, kind: Objects, name: str) -> None:
        found = kind.get(name)
        if found is not None and not is_terminating(found):
            self._patch(kind, found, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})

    def _drop_released(self, kind: Objects, name: str) -> None:
        found = kind[name]
        if is_terminating(found) and not child(found, "metadata").get("finalizers") and kind is not self.pods:
            del kind[name]
