"""What the API server and kubelets offer to pods that are resized in place."""

from __future__ import annotations

import asyncio
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, node_of
from scripts.autoscale.check.facts import Look, Objects, Unseen
from scripts.autoscale.check.gathering.accounts import MOST_AGENTS
from scripts.autoscale.check.gathering.looking import looked, read_json
from scripts.autoscale.check.judges.pod_databases import is_guaranteed

NODES_PROXY: Final = "get nodes/proxy"
"""The right that the API server asks for before it passes a request on to a kubelet."""


async def core_api(client: ApiClient) -> Look[Json]:
    """Kinds and subresources of the core API."""
    return await looked(_json(client, "/api/v1"), "get /api/v1")


async def configurations(client: ApiClient, pods: Objects) -> dict[str, Look[Json]]:
    """By node with a Guaranteed postgres pod: the configuration of its kubelet."""
    guaranteed = [] if isinstance(pods, Unseen) else [pod for pod in pods.value if is_guaranteed(pod)]
    # Nodes are configured alike: some stand for all, as with agents.
    nodes = sorted({node_of(pod) for pod in guaranteed})[:MOST_AGENTS]
    paths = [f"/api/v1/nodes/{node}/proxy/configz" for node in nodes]
    looks = await asyncio.gather(*(looked(_json(client, path), NODES_PROXY) for path in paths))
    return dict(zip(nodes, looks, strict=True))


async def _json(client: ApiClient, path: str) -> Json:
    return read_json(await client.raw_get(path), path)
