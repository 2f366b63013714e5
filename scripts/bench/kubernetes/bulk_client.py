"""Sends many concurrent requests to the API server, with little overhead."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deploy.local.kubernetes.plan.cluster_plan import API_PORT, CONTROL_HOST
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import MERGE_PATCH, NODES, PODS, SERVICE_ACCOUNTS, VIRTUAL_MACHINES
from protocol.names import TOKEN_AUDIENCE
from protocol.runtime.http_connection import HttpConnection
from protocol.runtime.keep_alive import open_connection
from protocol.runtime.trust import trusting
from scripts.bench.kubernetes.control_plane import ControlPlane
from scripts.bench.kubernetes.fake_objects import NAMESPACE, node, node_name, pod, virtual_machine, vm_name
from scripts.bench.load_client import http_request, send_all

_CONNECTIONS: Final = 16
# Metadata only, because it is faster to parse.
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class BulkClient:
    """Client of the API server, with an admin token."""

    token: str
    tls: ssl.SSLContext

    @classmethod
    def of(cls, plane: ControlPlane) -> BulkClient:
        """A client of ``plane``."""
        return cls(plane.admin_token, trusting(file=plane.authority))

    def request(
        self, method: str, path: str, body: Json | None, kind: str = "application/json", *, whole: bool = False
    ) -> bytes:
        """Encode a request. ``whole``: the response contains whole objects instead of their metadata."""
        accept = "application/json" if whole else METADATA
        content = json.dumps(body).encode() if body is not None else b""
        return http_request(method, path, self.token, content, Host=CONTROL_HOST, Accept=accept, Content_Type=kind)

    async def connect(self) -> HttpConnection:
        """Connect to the API server."""
        return await open_connection(CONTROL_HOST, API_PORT, self.tls)

    async def send(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send all requests; return the response bodies in order. Raises ``BenchError``."""
        return [body for body, _ in await send_all(self.connect, requests, _CONNECTIONS)]

    async def create_nodes(self, numbers: Sequence[int]) -> None:
        """Create nodes without taints."""
        await self.send([self.request("POST", NODES.path(), node(number)) for number in numbers])
        # The API server adds the ``not-ready`` taint, and no controller removes it here.
        ready: Json = {"spec": {"taints": None}}
        paths = [NODES.path(name=node_name(number)) for number in numbers]
        await self.send([self.request("PATCH", path, ready, MERGE_PATCH) for path in paths])

    async def create_vms(self, numbers: Sequence[int]) -> dict[int, str]:
        """Create VMs; return their UIDs by number."""
        path = VIRTUAL_MACHINES.path(NAMESPACE)
        responses = await self.send([self.request("POST", path, virtual_machine(number)) for number in numbers])
        return {number: uid_in(response) for number, response in zip(numbers, responses, strict=True)}

    async def create_pods(self, vms: dict[int, str], nodes: int = 0) -> dict[int, str]:
        """Create the pods of ``vms``, pending or, if ``nodes`` > 0, bound round robin; return their UIDs by number."""
        node_names = [node_name(number % nodes) if nodes else "" for number in vms]
        bodies = [pod(number, uid, name) for (number, uid), name in zip(vms.items(), node_names, strict=True)]
        responses = await self.send([self.request("POST", PODS.path(NAMESPACE), body) for body in bodies])
        return {number: uid_in(response) for number, response in zip(vms, responses, strict=True)}

    async def delete_pods(self) -> None:
        """Delete all pods."""
        # Grace period 0, because no kubelet confirms the deletion.
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        await self.send([self.request("DELETE", PODS.path(NAMESPACE), body, whole=True)])

    async def agent_tokens(self, pods: dict[int, str]) -> dict[int, str]:
        """Create a token for each VM's agent, bound to its pod; ``pods`` contains the UIDs by number."""
        path = SERVICE_ACCOUNTS.path(NAMESPACE, "default", "token")
        bodies = [_token_request(number, uid) for number, uid in pods.items()]
        responses = await self.send([self.request("POST", path, body, whole=True) for body in bodies])
        return {
            number: json.loads(response)["status"]["token"] for number, response in zip(pods, responses, strict=True)
        }


def _token_request(number: int, pod_uid: str) -> Json:
    bound = {"kind": "Pod", "apiVersion": "v1", "name": vm_name(number), "uid": pod_uid}
    return {"spec": {"audiences": [TOKEN_AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound}}


def uid_in(response: bytes) -> str:
    """UID of the object in a response of the API server."""
    return str(json.loads(response)["metadata"]["uid"])
