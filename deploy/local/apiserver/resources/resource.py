"""Properties of a resource: names, verbs, subresources, printer columns.

A resource is identified by group, version and plural; its objects are stored by group and plural, independent of the
versions that clients use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deploy.local.apiserver.apimachinery.errors import Subject
from deploy.local.apiserver.schema.structural import Schema

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE_ONLY: Final = ("create",)
ONE_BY_ONE: Final = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")

METADATA_FIELDS: Final = ("metadata.name", "metadata.namespace")
"""Fields that field selectors can use for every resource."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of ``kubectl get``. ``path`` is a JSONPath; ``priority`` > 0: only with ``-o wide``."""

    name: str
    path: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Dotted paths of the fields of a resource's ``scale`` subresource."""

    spec_replicas: str = "spec.replicas"
    status_replicas: str = "status.replicas"
    selector: str = "status.selector"


@dataclass(frozen=True, slots=True)
class ServedResource:
    """One resource in one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    columns: tuple[TableColumn, ...] = ()
    selectable: tuple[str, ...] = ()
    scale: ScalePaths | None = None
    generation: bool = False
    singular: str = ""
    list_kind: str = ""
    schema: Schema | None = None
    custom: bool = False
    storage_version: str = ""

    @property
    def key(self) -> str:
        """The storage key of its objects: ``pods``, ``virtualmachines.vm.neon.tech``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_api_version(self) -> str:
        """The apiVersion of stored objects."""
        version = self.storage_version or self.version
        return f"{self.group}/{version}" if self.group else version

    @property
    def singular_name(self) -> str:
        """The lower-case name of one object."""
        return self.singular or self.kind.lower()

    @property
    def kind_of_list(self) -> str:
        """The kind of a list of its objects."""
        return self.list_kind or f"{self.kind}List"

    @property
    def selectable_fields(self) -> tuple[str, ...]:
        """The dotted paths that field selectors can use."""
        return METADATA_FIELDS + self.selectable

    @property
    def has_status(self) -> bool:
        """True if ``status`` is written through its own subresource only."""
        return "status" in self.subresources

    def subject(self, name: str) -> Subject:
        """The object with this name, for error messages."""
        return Subject(self.plural, self.group, name, self.kind)
