"""The resources that are served now: built-in ones and custom resources.

The catalog is derived from the stored CustomResourceDefinitions and has no other state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from deploy.local.apiserver.resources.resource import ServedResource

_VERSION: Final = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")
_STAGES: Final = {None: 2, "beta": 1, "alpha": 0}


def version_rank(version: str) -> tuple[int, int, int, int, str]:
    """A sort key that puts the preferred version first."""
    match = _VERSION.fullmatch(version)
    # All other names come last, alphabetically.
    if not match:
        return (1, 0, 0, 0, version)
    # Kubernetes' order of preference: `v2` before `v1` before `v2beta1` before `v1alpha1`.
    return (0, -_STAGES[match[2]], -int(match[1]), -int(match[3] or 0), version)


class Catalog:
    """All resources by group, version and plural."""

    def __init__(self, builtins: Iterable[ServedResource]) -> None:
        self._builtins = tuple(builtins)
        self._custom: dict[str, tuple[ServedResource, ...]] = {}
        self._by_path: dict[tuple[str, str, str], ServedResource] = {}
        self._by_key: dict[str, ServedResource] = {}
        self.revision = 0
        """Incremented when the served resources change."""
        self._rebuild()

    def define(self, definition: str, resources: Iterable[ServedResource]) -> None:
        """Serve the versions of one CustomResourceDefinition instead of its earlier ones."""
        self._custom[definition] = tuple(resources)
        self._rebuild()

    def forget(self, definition: str) -> None:
        """Stop serving the resources of a CustomResourceDefinition."""
        self._custom.pop(definition, None)
        self._rebuild()

    def _rebuild(self) -> None:
        self.revision += 1
        served = [*self._builtins, *(resource for versions in self._custom.values() for resource in versions)]
        self._by_path = {(resource.group, resource.version, resource.plural): resource for resource in served}
        self._by_key = {}
        for resource in sorted(served, key=lambda candidate: version_rank(candidate.version)):
            # The first is the preferred version.
            self._by_key.setdefault(resource.key, resource)

    def find(self, group: str, version: str, plural: str) -> ServedResource | None:
        """The resource, or None if it is not served."""
        return self._by_path.get((group, version, plural))

    def by_key(self, key: str) -> ServedResource | None:
        """The preferred version of the resource with storage key ``key``."""
        return self._by_key.get(key)

    def builtin(self, key: str) -> ServedResource:
        """The built-in resource with storage key ``key``, such as ``pods``."""
        return self._by_key[key]

    def by_kind(self, api_version: str, kind: str) -> ServedResource | None:
        """The resource of objects with this apiVersion and kind; None if it is not served."""
        group, _, version = api_version.rpartition("/")
        served = self._by_path.values()
        return next((item for item in served if (item.group, item.version, item.kind) == (group, version, kind)), None)

    def groups(self) -> Mapping[str, Mapping[str, list[ServedResource]]]:
        """Resources by group (empty: core) and version, the preferred version first."""
        by_group: dict[str, dict[str, list[ServedResource]]] = {}
        for resource in sorted(self._by_path.values(), key=lambda candidate: version_rank(candidate.version)):
            by_group.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
        return dict(sorted(by_group.items()))
