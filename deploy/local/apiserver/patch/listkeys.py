"""Which lists of the built-in kinds merge item by item, and by which keys.

Kubernetes says it in the tags of its Go types; here the name of the list's field (and of its parent, where the name
alone does not decide) says it. A list that is not in the table is replaced as a whole.
"""

from __future__ import annotations

from typing import Final

SET: Final = ""
"""The "key" of a list of plain values that merges as a set."""

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
}
_BY_PARENT: Final = {
    ("containers", "ports"): "containerPort",
    ("initContainers", "ports"): "containerPort",
    ("ephemeralContainers", "ports"): "containerPort",
    ("spec", "ports"): "port",
    ("status", "addresses"): "type",
}


def merge_key(parent: str, name: str) -> str | None:
    """The key by which items of the list ``name`` inside ``parent`` are told apart; ``SET``, or None for "replace"."""
    return _BY_PARENT.get((parent, name), _BY_NAME.get(name))
