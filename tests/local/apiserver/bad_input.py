"""Requests that are wrong in some way, made from ones that are right by a given random generator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from deploy.local.cluster.content import local_crds

_CORE: Final = "/api/v1/namespaces/default"
_NEON: Final = "/apis/vm.neon.tech/v1/namespaces/default"
_DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/default/deployments"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_DEFINITION: Final[Any] = next(each for each in local_crds() if "migrations" in str(each["metadata"]))
_VM: Final[Any] = {
    "apiVersion": "vm.neon.tech/v1",
    "kind": "VirtualMachine",
    "metadata": {"name": "db", "labels": {"a": "b"}, "annotations": {"x": "y"}},
    "spec": {
        "schedulerName": "s",
        "guest": {
            "cpus": {"min": "250m", "use": 1, "max": 4},
            "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 1, "max": 4},
            "rootDisk": {"image": "i"},
            "ports": [{"port": 22}],
        },
    },
}
_OWNER: Final[Any] = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}
_POD: Final[Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"a": "b"}, "ownerReferences": [_OWNER], "finalizers": ["a/b"]},
    "spec": {
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
        "tolerations": [{"key": "a", "operator": "Exists"}],
    },
    "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "True"}]},
}
_NODE: Final[Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}},
}
_MIGRATION: Final[Any] = {
    "apiVersion": "vm.neon.tech/v1",
    "kind": "VirtualMachineMigration",
    "metadata": {"name": "m"},
    "spec": {"vmName": "db"},
}
_NAMESPACE: Final[Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}
_ACCOUNT: Final[Any] = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
_DEPLOYMENT: Final[Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
        "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
    },
}
_SCALE: Final[Any] = {"kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 3}}
_REVIEW: Final[Any] = {"spec": {"token": "a.b.c", "audiences": ["x"]}}
_TOKEN: Final[Any] = {
    "spec": {
        "audiences": ["a"],
        "expirationSeconds": 600,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"},
    }
}
_BINDING: Final[Any] = {"kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
_DELETE: Final[Any] = {
    "gracePeriodSeconds": 1,
    "preconditions": {"uid": "u"},
    "propagationPolicy": "Background",
    "dryRun": ["All"],
}
_EVICTION: Final[Any] = {"kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": _DELETE}
_JSON_PATCH: Final[Any] = [
    {"op": "replace", "path": "/spec/a", "value": 1},
    {"op": "test", "path": "/metadata/name", "value": "p"},
    {"op": "move", "from": "/a", "path": "/b"},
]

SEEDS: Final[tuple[tuple[str, Any], ...]] = (
    (f"{_CORE}/pods", _POD),
    (f"{_NEON}/virtualmachines", _VM),
    ("/api/v1/nodes", _NODE),
    (f"{_NEON}/virtualmachinemigrations", _MIGRATION),
    ("/api/v1/namespaces", _NAMESPACE),
    (f"{_CORE}/serviceaccounts", _ACCOUNT),
    (_DEPLOYMENTS, _DEPLOYMENT),
)
REQUESTS: Final[tuple[tuple[str, str, Any], ...]] = (
    *(("POST", path, body) for path, body in SEEDS),
    ("PUT", f"{_CORE}/pods/p", _POD),
    ("PUT", f"{_NEON}/virtualmachines/db", _VM),
    ("PUT", f"{_NEON}/virtualmachines/db/status", _VM),
    ("PUT", "/api/v1/nodes/n", _NODE),
    ("PATCH", f"{_CORE}/pods/p", _POD),
    ("PATCH", f"{_CORE}/pods/p/status", _POD),
    ("PATCH", f"{_NEON}/virtualmachines/db", _VM),
    ("PATCH", f"{_NEON}/virtualmachines/db/status", _VM),
    ("PATCH", "/api/v1/nodes/n", _NODE),
    ("PATCH", "/api/v1/nodes/n/status", _NODE),
    ("PATCH", _DEPLOYMENTS + "/d", _DEPLOYMENT),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", _REVIEW),
    ("POST", f"{_CORE}/serviceaccounts/default/token", _TOKEN),
    ("POST", f"{_CORE}/pods/p/binding", _BINDING),
    ("POST", f"{_CORE}/pods/p/eviction", _EVICTION),
    ("PUT", _DEPLOYMENTS + "/d/scale", _SCALE),
    ("PATCH", _DEPLOYMENTS + "/d/scale", _SCALE),
    ("POST", _DEFINITIONS, _DEFINITION),
    ("PUT", f"{_DEFINITIONS}/virtualmachinemigrations.vm.neon.tech", _DEFINITION),
    ("PATCH", f"{_DEFINITIONS}/virtualmachinemigrations.vm.neon.tech", _DEFINITION),
    ("DELETE", f"{_CORE}/pods/p", _DELETE),
    ("DELETE", f"{_NEON}/virtualmachines/db", _DELETE),
    ("DELETE", f"{_CORE}/pods", None),
    ("PUT", "/api/v1/namespaces/x/finalize", _NAMESPACE),
    ("GET", f"{_CORE}/pods", None),
    ("GET", "/api/v1/nodes", None),
    ("GET", f"{_NEON}/virtualmachines/db", None),
    ("GET", f"{_DEPLOYMENTS}/d/scale", None),
    ("GET", "/openapi/v3/apis/vm.neon.tech/v1", None),
)

PATCHES: Final = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/json-patch+json",
)
_ACCEPTED: Final = (
    "application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
    "*/*",
    "text/html",
    ";;;,",
)
_QUERIES: Final = {
    "labelSelector": ("a=b", "a in (b)", "a in (", "((", "x" * 3000),
    "fieldSelector": ("metadata.name=p", "status.phase!=Running", "a.b=c", "=", "é"),
    "limit": ("0", "-1", "1.5", "9" * 5000, "1"),
    "continue": ("eyJ2Ijo", "e30", "é", "x" * 999),
    "resourceVersion": ("0", "1", "-1", "x", "9" * 23),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "x"),
    "dryRun": ("All", "x"),
    "fieldManager": ("m", "é", ""),
    "fieldValidation": ("Strict", "x"),
    "force": ("true", "x"),
    "gracePeriodSeconds": ("0", "-1", "9" * 30, "x"),
    "propagationPolicy": ("Orphan", "Foreground", "x"),
    "includeObject": ("Object", "None", "x"),
}
_BODIES: Final = (
    b"",
    b"null",
    b"[]",
    b"{",
    b"\x00\xff",
    b"k8s\x00" + bytes(range(40)),
    b'{"a":' * 2000 + b"1" + b"}" * 2000,
    b"a: &a [*a]",
    b"[" * 2000,
)
_ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 10**18, 10**30, -(10**400), 1e308, -0.0, 0.5, "", "a", "-1", "1e1000000000000000000",
    "9" * 500, "1Ei", "-1Gi", "\u0000", "é", "a/b", "a" * 300, [], {}, [None], [[]], {"": None}, {"a": 1},
    [1, "a", None], [{}], {"matchLabels": 3}, {"name": None}, "2026-01-01T00:00:00Z", "[", "(a+)+$",
    [{"a": 1}], {"type": 1},
    {"$patch": "delete"}, {"$patch": []}, {"$retainKeys": [1]}, {"$retainKeys": 1}, {"$setElementOrder/containers": 3},
    {"$deleteFromPrimitiveList/finalizers": 1}, {"k:[1]": {}}, [{"fieldsV1": {"k:[1]": {}}, "operation": "Apply"}],
)  # fmt: skip
_NAMES: Final = ("extra", "$patch", "status", "", "a.b", "é", "metadata", "x" * 400, "managedFields", "ownerReferences")


def seed_of(kind: str) -> Any:
    """An object of that kind with nothing wrong in it."""
    return next(body for _, body in SEEDS if body["kind"] == kind)


@dataclass(frozen=True, slots=True)
class BadRequest:
    """One request; it may happen to be right."""

    method: str
    path: str
    body: bytes
    content_type: str = "application/json"
    accept: str = "application/json"
    query: dict[str, str] = field(default_factory=dict)


def bad_requests(random: Random, count: int) -> Iterator[BadRequest]:
    """So many requests."""
    for _ in range(count):
        method, path, right = random.choice(REQUESTS)
        kind = "application/json"
        if method == "PATCH":
            kind = random.choice(PATCHES)
            right = _JSON_PATCH if kind == PATCHES[-1] else right
        body = b"" if right is None else json.dumps(changed(random, right)).encode()
        if random.random() < 0.1:
            body, kind = random.choice(_BODIES), random.choice((kind, "application/yaml", _PROTOBUF, "text/plain", ""))
        elif random.random() < 0.05:
            body = body[: random.randrange(len(body) + 1)]
        asked = random.sample(sorted(_QUERIES), random.choice((0, 0, 1, 2)))
        query = {name: random.choice(_QUERIES[name]) for name in asked}
        yield BadRequest(method, path, body, kind, random.choice(_ACCEPTED), query)


_PROTOBUF: Final = "application/vnd.kubernetes.protobuf"


def changed(random: Random, right: Any) -> Any:
    """A copy of ``right`` with something wrong in it."""
    value = json.loads(json.dumps(right))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places or random.random() < 0.02:
            return _odd(random)
        container, at = random.choice(places)
        if random.random() < 0.7:
            container[at] = _odd(random)
        elif random.random() < 0.5:
            del container[at]
        elif isinstance(container, dict):
            container[random.choice(_NAMES)] = _odd(random)
        else:
            container.append(_odd(random))
    return value


def _odd(random: Random) -> Any:
    return json.loads(json.dumps(random.choice(_ODD)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside of ``value``: what holds it, and its key or index."""
    if isinstance(value, (dict, list)):
        for at in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, at
            yield from _places(value[at])
