"""Queries whether the API server and kubelets support in-place pod resizes."""

from __future__ import annotations

import asyncio
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, node_of
from scripts.autoscale.check.facts import Objects, Observation, Unavailable
from scripts.autoscale.check.gathering.observing import observe, read_json
from scripts.autoscale.check.gathering.program_queries import MOST_AGENTS
from scripts.autoscale.check.judges.pod_databases import is_guaranteed

NODES_PROXY: Final = "get nodes/proxy"
"""The permission that the API server requires for requests to a kubelet."""


async def core_api(client: ApiClient) -> Observation[Json]:
    """The API server's list of core resources and subresources."""
    return await observe(_json(client, "/api/v1"), "get /api/v1")


async def configurations(client: ApiClient, pods: Objects) -> dict[str, Observation[Json]]:
    """The kubelet configurations of nodes with a Guaranteed postgres pod, by node."""
    guaranteed = [] if isinstance(pods, Unavailable) else [pod for pod in pods.value if is_guaranteed(pod)]
    # Nodes are usually configured alike, so a sample suffices.
    nodes = sorted({node_of(pod) for pod in guaranteed})[:MOST_AGENTS]
    paths = [f"/api/v1/nodes/{node}/proxy/configz" for node in nodes]
    observations = await asyncio.gather(*(observe(_json(client, path), NODES_PROXY) for path in paths))
    return dict(zip(nodes, observations, strict=True))


async def _json(client: ApiClient, path: str) -> Json:
    return read_json(await client.raw_get(path), path)
