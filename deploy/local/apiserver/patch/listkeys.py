"""Merge keys of lists in built-in kinds, for patches that merge lists item by item.

Kubernetes declares them in tags of its Go types. Here they depend on the list's field name and, if that is ambiguous,
on its parent's name. Lists that are not in the tables are replaced as a whole.
"""

from __future__ import annotations

from typing import Final

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject

SET: Final = ""
"""The "key" of a list of scalars that merges as a set."""

_BY_NAME: Final = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "finalizers": SET,
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "hostIPs": "ip",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "webhooks": "name",
}
# Under other parents, lists with these names have other keys or none.
_BY_PARENT: Final = {
    ("containers", "ports"): "containerPort",
    ("initContainers", "ports"): "containerPort",
    ("ephemeralContainers", "ports"): "containerPort",
    ("spec", "ports"): "port",
    ("status", "addresses"): "type",
}


def merge_key(parent: str, name: str) -> str | None:
    """The merge key of list ``name`` in ``parent``, or ``SET``; None if the list is replaced as a whole."""
    return _BY_PARENT.get((parent, name), _BY_NAME.get(name))


def builtin_list_keys(path: tuple[str, ...], name: str) -> tuple[str, ...] | None:
    """Merge keys of a built-in kind's list for server-side apply; see ``ListKeys``."""
    # Steps to list items are not field names.
    parents = [step.removeprefix("f:") for step in path if step.startswith("f:")]
    key = merge_key(parents[-1] if parents else "", name)
    if key is None:
        return None
    return () if key == SET else (key,)


def schema_list_keys(schema: JsonObject, path: tuple[str, ...], name: str) -> tuple[str, ...] | None:
    """Merge keys of a custom resource's list, from its schema (``x-kubernetes-list-type``)."""
    # Schemas do not describe metadata, which has the same type in all kinds.
    if path[:1] == ("f:metadata",):
        return builtin_list_keys(path, name)
    for step in path:
        if step.startswith("f:"):
            inner = (schema.get("properties") or {}).get(step[2:], schema.get("additionalProperties"))
        else:
            inner = schema.get("items")
        if not isinstance(inner, dict):
            return None
        schema = inner
    rule = (schema.get("properties") or {}).get(name)
    if not isinstance(rule, dict) or rule.get("x-kubernetes-list-type") not in {"set", "map"}:
        return None
    return tuple(rule.get("x-kubernetes-list-map-keys", ()))
