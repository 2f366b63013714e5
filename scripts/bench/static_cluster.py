"""A static cluster behind the scheduler's API port: prepared objects, and writes that succeed at once.

A real API server on the same cores would distort the measurement of the service.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME, RUNNER_CONTAINER, TOKEN_AUDIENCE, VM_KIND

NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
VMS: Final = "/apis/vm.neon.tech/v1/virtualmachines"
NODE_CPUS: Final = 64
VMS_PER_NODE: Final = 20
SIZES: Final = (1, 2, 4, 8)
"""GiB of VMs whose pods wait for a node; they have a quarter as many vCPUs."""


def node_name(number: int) -> str:
    """The name of a node; numbers begin at 0."""
    return f"node-{number:05}"


def vm_name(number: int) -> str:
    """The name of a VM and of its pod; numbers begin at 0."""
    return f"vm-{number:05}"


def _node(number: int) -> JsonObject:
    allocatable = {"cpu": str(NODE_CPUS), "memory": f"{4 * NODE_CPUS}Gi"}
    return {"metadata": {"name": node_name(number), "uid": f"n-{number}"}, "status": {"allocatable": allocatable}}


def _vm(number: int, slots: int = 4, version: int = 1, annotations: Mapping[str, str] | None = None) -> JsonObject:
    guest = {
        "cpus": {"min": "250m", "use": f"{slots * 250}m", "max": 2},
        "memorySlots": {"min": 1, "use": slots, "max": 8},
        "memorySlotSize": "1Gi",
    }
    metadata = {
        "name": vm_name(number),
        "namespace": "default",
        "uid": f"v-{number}",
        "resourceVersion": str(version),
        "generation": 1,
        "annotations": annotations or {},
        "labels": {LABEL_ENABLED: "true"},
    }
    return {"metadata": metadata, "spec": {"guest": guest}, "status": {"cpus": 1, "memorySize": "4Gi"}}


def pod(number: int, node: str | None) -> JsonObject:
    """The pod of a VM, bound to ``node`` or still pending (None)."""
    owner = {"apiVersion": "vm.neon.tech/v1", "kind": VM_KIND, "name": vm_name(number), "uid": f"v-{number}"}
    metadata = {
        "name": vm_name(number),
        "namespace": "default",
        "uid": f"p-{number}",
        "labels": {LABEL_VM_NAME: vm_name(number)},
        "ownerReferences": [owner | {"controller": True}],
    }
    spec: dict[str, object] = {"containers": [{"name": RUNNER_CONTAINER}], "schedulerName": "autoscale-scheduler"}
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending" if node is None else "Running"}}


class StaticCluster:
    """``KubernetesApi``: ``nodes`` nodes, ``vms`` running VMs and ``pending`` VMs whose pods wait for a node.

    The pending ones take the ``SIZES`` by turns.
    """

    def __init__(self, nodes: int, vms: int, pending: int) -> None:
        running = [pod(number, node_name(number // VMS_PER_NODE)) for number in range(vms)]
        waiting = [pod(number, None) for number in range(vms, vms + pending)]
        self._version = 1
        # Prepared, so that making these answers does not add to the measured CPU.
        self._reviews = {token_of(vm_name(number)): _accepted(_bound_to(vm_name(number))) for number in range(vms)}
        self._lists: dict[str, list[JsonObject]] = {
            NODES: [_node(number) for number in range(nodes)],
            VMS: [
                *(_vm(number) for number in range(vms)),
                *(_vm(number, SIZES[number % len(SIZES)]) for number in range(vms, vms + pending)),
            ],
            PODS: [*running, *waiting],
        }

    async def page(self, call: ApiCall) -> Page:
        """Returns a prepared list."""
        return Page("1", "", [dict(prepared) for prepared in self._lists.get(call.path, [])], [])

    async def call(self, call: ApiCall) -> JsonObject:
        """Every write succeeds at once."""
        if call.path.endswith("/tokenreviews"):
            return self._review(call)
        if call.method == "PATCH" and call.path.startswith("/apis/vm.neon.tech"):
            return self._patched(int(call.path.rpartition("-")[2]), call)
        return {}

    def _review(self, call: ApiCall) -> JsonObject:
        """Accepts every token of ``token_of`` and ``node_token``; the reviews for running VMs are prepared."""
        spec = (call.body or {}).get("spec")
        token = str(spec["token"]) if isinstance(spec, dict) else ""
        return self._reviews.get(token) or _accepted(_claims_of(token)["kubernetes.io"])

    def _patched(self, number: int, call: ApiCall) -> JsonObject:
        # The scheduler treats a write that leaves the version unchanged as one without effect.
        self._version += 1
        metadata = (call.body or {}).get("metadata")
        annotations = metadata["annotations"] if isinstance(metadata, dict) else None
        return _vm(number, version=self._version, annotations=annotations)

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A watch without events."""
        return _silence(call)


def token_of(pod: str) -> str:
    """A text with the shape of the token of the agent in ``pod``."""
    return _token(_bound_to(pod))


def node_token(node: str) -> str:
    """A text with the shape of the token of the agent of ``node``."""
    return _token({"node": {"name": node}})


def _bound_to(pod: str) -> JsonObject:
    return {"pod": {"name": pod, "uid": _uid(pod)}}


def _token(bound: Mapping[str, object]) -> str:
    claims = {
        "iss": "https://kubernetes.default.svc",
        "sub": "system:serviceaccount:default:default",
        "aud": [TOKEN_AUDIENCE],
        "exp": 4102444800,  # the year 2100
        "kubernetes.io": {"namespace": "default", **bound},
    }
    # RS256 signatures have 256 bytes; here nobody verifies them.
    parts = (b'{"alg":"RS256"}', json.dumps(claims).encode(), bytes(256))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def _uid(pod: str) -> str:
    return f"p-{int(pod.rpartition('-')[2])}"


def _claims_of(token: str) -> dict[str, Any]:
    # Too much padding is ignored, too little is an error.
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "==="))
    return claims


def _accepted(bound: Mapping[str, Any]) -> JsonObject:
    """The TokenReview of a token that is bound to this pod or node."""
    prefix = "authentication.kubernetes.io/"
    if "pod" in bound:
        extra = {f"{prefix}pod-name": [bound["pod"]["name"]], f"{prefix}pod-uid": [bound["pod"]["uid"]]}
    else:
        extra = {f"{prefix}node-name": [bound["node"]["name"]]}
    user = {"username": "system:serviceaccount:default:default", "extra": extra}
    return {"status": {"authenticated": True, "audiences": [TOKEN_AUDIENCE], "user": user}}


@asynccontextmanager
async def _silence(_: ApiCall) -> AsyncIterator[AsyncIterator[bytes]]:
    yield _never()


async def _never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""
