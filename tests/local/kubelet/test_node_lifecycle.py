"""A node's condition and taints follow its kubelet and its operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.local.cluster.content import register_node
from deploy.local.kubelet.node_lifecycle import NodeLifecycle
from deploy.local.kubelet.node_object import NodeSpec, ready_condition
from protocol.kubernetes.objects import Json, items, labels_of, text
from protocol.kubernetes.resources import NODES
from protocol.messages import ObjectName
from protocol.units import Resources
from scheduler_plugin.cluster.scheduling_fields import pod_constraints
from scheduler_plugin.constraints.checker import Candidate, ConstraintChecker
from scheduler_plugin.constraints.cluster_view import ClusterView
from scheduler_plugin.constraints.model import NodeTraits
from tests.fake_clock import FakeClock
from tests.neonvm.in_process import InProcess

NAME = ObjectName("", "node-1")
GPU: Json = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
SIZE = Resources.parse("8", "16Gi")
NOT_READY = ["node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"]
UNREACHABLE = ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"]
CORDONED = "node.kubernetes.io/unschedulable:NoSchedule"


class WatchedNode:
    """One registered node, and the controller that keeps its condition and taints."""

    def __init__(self, client: ApiClient) -> None:
        self.client, self.clock = client, FakeClock()
        self.nodes = Informer(client, NODES, self.clock)
        self.lifecycle = NodeLifecycle(client, self.nodes, self.clock)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(4):  # a write, the watch that brings it, and the write that follows from it
            await self.nodes.refresh()
            await self.clock.advance(seconds / 4)

    async def change(self, body: Json, subresource: str = "") -> None:
        await self.client.merge_patch(NODES, NAME, body, subresource)
        await self.pass_time(1.0)

    async def state(self) -> tuple[str, list[str]]:
        """The status of the condition Ready, and every taint."""
        node = await self.client.get(NODES, NAME)
        (ready,) = [text(each, "status") for each in items(node, "status", "conditions")]
        return ready, [f"{text(each, 'key')}:{text(each, 'effect')}" for each in items(node, "spec", "taints")]


@asynccontextmanager
async def watched_node(spec: NodeSpec) -> AsyncIterator[WatchedNode]:
    api = InProcess()
    async with api.client() as client:
        node = WatchedNode(client)
        await register_node(client, spec, node.clock)
        await node.nodes.refresh()
        running = asyncio.ensure_future(node.lifecycle.run())
        try:
            await node.pass_time(1.0)
            yield node
        finally:
            running.cancel()
            await asyncio.wait((running,))
    api.server.close()


async def test_node_keeps_given_labels_and_taints() -> None:
    async with watched_node(NodeSpec("node-1", SIZE, {"zone": "b"}, (GPU,))) as node:
        assert await node.state() == ("True", ["gpu:NoSchedule"])
        labels = labels_of(await node.client.get(NODES, NAME))
        assert labels == {
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": "node-1",
            "kubernetes.io/os": "linux",
            "zone": "b",
        }


async def test_local_nodes_have_an_architecture() -> None:
    """The scheduler moves it only to nodes with the label, which every kubelet sets."""
    async with watched_node(NodeSpec("node-1", SIZE)) as node:
        traits = NodeTraits(labels_of(await node.client.get(NODES, NAME)))
    candidate = Candidate("default", pod_constraints({"targetArchitecture": "amd64"}))
    assert ConstraintChecker(ClusterView({"node-1": traits}, [])).check(candidate).obstacle("node-1") is None


async def test_stopped_kubelet_makes_node_unreachable() -> None:
    async with watched_node(NodeSpec("node-1", SIZE, taints=(GPU,))) as node:
        node.lifecycle.kubelet_stopped("node-1")
        await node.pass_time(36.0)
        assert await node.state() == ("True", ["gpu:NoSchedule"])
        await node.pass_time(8.0)
        assert await node.state() == ("Unknown", ["gpu:NoSchedule", *UNREACHABLE])
        node.lifecycle.kubelet_started("node-1")
        await node.pass_time(4.0)
        assert await node.state() == ("True", ["gpu:NoSchedule"])


async def test_short_kubelet_outage_leaves_no_trace() -> None:
    async with watched_node(NodeSpec("node-1", SIZE)) as node:
        node.lifecycle.kubelet_stopped("node-1")
        await node.pass_time(20.0)
        node.lifecycle.kubelet_started("node-1")
        await node.pass_time(60.0)
        assert await node.state() == ("True", [])


async def test_not_ready_node_is_tainted() -> None:
    async with watched_node(NodeSpec("node-1", SIZE)) as node:
        broken = ready_condition("False", "KubeletNotReady", "the disk is full", "2026-01-01T00:00:00Z")
        await node.change({"status": {"conditions": [broken]}}, "status")
        assert await node.state() == ("False", NOT_READY)
        whole = ready_condition("True", "KubeletReady", "all is well", "2026-01-01T00:00:00Z")
        await node.change({"status": {"conditions": [whole]}}, "status")
        assert await node.state() == ("True", [])


async def test_cordon_taint_keeps_other_taints() -> None:
    async with watched_node(NodeSpec("node-1", SIZE)) as node:
        await node.change({"spec": {"unschedulable": True, "taints": [GPU]}})
        assert await node.state() == ("True", ["gpu:NoSchedule", CORDONED])
        await node.change({"spec": {"unschedulable": None}})
        assert await node.state() == ("True", ["gpu:NoSchedule"])


async def test_reregistered_node_keeps_taints() -> None:
    async with watched_node(NodeSpec("node-1", SIZE, taints=(GPU,))) as node:
        await node.change({"spec": {"taints": []}})
        await register_node(node.client, NodeSpec("node-1", SIZE, {"zone": "c"}, (GPU,)), node.clock)
        assert await node.state() == ("True", [])
        assert labels_of(await node.client.get(NODES, NAME))["zone"] == "c"
