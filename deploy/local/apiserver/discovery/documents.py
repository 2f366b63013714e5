"""Discovery documents: groups, versions, resources, and the aggregated document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from deploy.local.apiserver.apimachinery.errors import no_such_path
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.resources.resource import ServedResource

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

VERSION: Final[JsonObject] = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.0+local",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
"""The Kubernetes release whose behaviour this server follows."""

_SUBRESOURCE_KINDS: Final = {
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
}
# These subresources return the object itself; those above have their own kinds.
_WRITABLE: Final = ("get", "patch", "update")
_OWN_KIND: Final = {"status": _WRITABLE, "resize": _WRITABLE, "finalize": ("update",)}


def core_versions() -> JsonObject:
    """``/api``."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    }


def _group(name: str, versions: Iterable[str]) -> JsonObject:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def group_list(catalog: Catalog) -> JsonObject:
    """``/apis``."""
    # The core group, without a name, is served only below `/api`.
    groups = [_group(name, versions) for name, versions in catalog.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(catalog: Catalog, name: str) -> JsonObject:
    """``/apis/GROUP``. Raises a 404."""
    versions = catalog.groups().get(name)
    if not versions or not name:
        raise no_such_path()
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def resource_list(catalog: Catalog, name: str, version: str) -> JsonObject:
    """``/api/v1`` and ``/apis/GROUP/VERSION``. Raises a 404."""
    resources = catalog.groups().get(name, {}).get(version)
    if not resources:
        raise no_such_path()
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/{version}" if name else version,
        "resources": [entry for resource in resources for entry in _entries(resource)],
    }


def _entries(resource: ServedResource) -> Iterator[JsonObject]:
    yield {
        "name": resource.plural,
        "singularName": resource.singular_name,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
        **_other_names(resource),
    }
    for name, group_name, version, kind, verbs in _subresources(resource):
        yield {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "group": group_name,
            "version": version,
            "kind": kind,
            "verbs": list(verbs),
        }


def _other_names(resource: ServedResource) -> JsonObject:
    names = {"shortNames": list(resource.short_names), "categories": list(resource.categories)}
    # Go omits empty lists.
    return {key: value for key, value in names.items() if value}


def _subresources(resource: ServedResource) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    for name in resource.subresources:
        own = (resource.group, resource.version, resource.kind, _OWN_KIND.get(name, ()))
        yield name, *_SUBRESOURCE_KINDS.get(name, own)


def aggregated(catalog: Catalog, core: bool) -> JsonObject:
    """Everything below ``/api`` (``core``) or ``/apis`` in one document."""
    groups = [(name, versions) for name, versions in catalog.groups().items() if (name == "") is core]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                # Go writes an unset time as null.
                "metadata": {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None},
                "versions": [
                    # There are no aggregated servers, so nothing can be stale.
                    {"version": version, "freshness": "Current", "resources": [_described(kind) for kind in resources]}
                    for version, resources in versions.items()
                ],
            }
            for name, versions in groups
        ],
    }


def _described(resource: ServedResource) -> JsonObject:
    scope = "Namespaced" if resource.namespaced else "Cluster"
    entry: JsonObject = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": scope,
        "singularResource": resource.singular_name,
        "verbs": list(resource.verbs),
        **_other_names(resource),
    }
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": name,
                "responseKind": {"group": group_name, "version": version, "kind": kind},
                "verbs": list(verbs),
            }
            for name, group_name, version, kind, verbs in _subresources(resource)
        ]
    return entry
