"""Properties of a resource: its names, its verbs, and what a client may ask of its objects.

A resource is known by group, version and plural; its objects are stored once, under group and plural, whatever version
clients use.
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
"""The fields by which objects of every resource can be selected."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of ``kubectl get``. ``path`` is a JSONPath; ``priority`` > 0 shows it with ``-o wide`` only."""

    name: str
    path: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Dotted paths of the fields that a resource's ``scale`` subresource shows."""

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
        """The name under which its objects are stored: ``pods``, ``virtualmachines.vm.neon.tech``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_api_version(self) -> str:
        """The apiVersion that stored objects carry."""
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
        """The dotted paths that a field selector may name."""
        return METADATA_FIELDS + self.selectable

    @property
    def has_status(self) -> bool:
        """True if ``status`` is written through its own subresource only."""
        return "status" in self.subresources

    def subject(self, name: str) -> Subject:
        """The object of this resource with that name, for error messages."""
        return Subject(self.plural, self.group, name, self.kind)
