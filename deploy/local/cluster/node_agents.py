"""Per-node agents: one process per node, with the identity of a pod on that node (S4.3)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from deploy.local.cluster.settings import NODE_AGENT_ACCOUNT, NODE_AGENT_NAMESPACE
from deploy.local.kubelet.agents import AGENT_PORT, EXPLAIN_TOKEN, AgentRun, ensure_account, node_form
from deploy.local.kubelet.pod_status import running_status
from deploy.local.kubelet.reporting import keep_writing_status
from deploy.local.kubelet.sandbox import NodeDependencies, keep_agent_running, pod_folder
from deploy.local.process import ProcessSupervisor
from deploy.neonvm.ports import NetworkError
from protocol.kubernetes.api import ApiUnknownError
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import PODS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.units import Seconds

# A hundred agents that start at once starve the machine for a minute.
_MAX_STARTING: Final = 4
_TIMEOUT: Final = Seconds(20.0)
_PAUSE: Final = Seconds(0.2)


def agent_pod(node: str) -> Json:
    """The agent's pod on ``node``."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{NODE_AGENT_ACCOUNT}-{node}",
            "namespace": NODE_AGENT_NAMESPACE,
            "labels": {"app.kubernetes.io/name": NODE_AGENT_ACCOUNT},
        },
        "spec": {
            "nodeName": node,
            "serviceAccountName": NODE_AGENT_ACCOUNT,
            # No requests: VMs get all of the node's capacity.
            "containers": [{"name": "agent", "image": "autoscaler-agent"}],
        },
    }


Connect = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to a host and port in the cluster's network. Raises ``OSError`` and ``NetworkError``."""


class NodeAgents:
    """The agents of all nodes."""

    def __init__(self, deps: NodeDependencies, connect: Connect) -> None:
        self._deps, self._connect = deps, connect
        self._slots = asyncio.Semaphore(_MAX_STARTING)
        self.supervisors: dict[str, ProcessSupervisor] = {}

    async def run(self, node: str) -> None:
        """Run the agent of ``node`` until cancelled. Raises ``ApiError`` and ``NetworkError``."""
        # The slot is freed when the agent listens; the task group runs until the agent ends.
        async with asyncio.TaskGroup() as tasks, self._slots:
            run = await self._prepare(node)
            supervisor = self.supervisors[node] = ProcessSupervisor(run.program, self._deps.clock)
            tasks.create_task(keep_agent_running(run, self._deps, supervisor))
            await self._wait_listening(run)

    async def _prepare(self, node: str) -> AgentRun:
        while True:
            # On a busy machine, the API server may time out.
            with suppress(ApiUnknownError):
                return await self._create(node)
            await self._deps.clock.sleep(_PAUSE)

    async def _create(self, node: str) -> AgentRun:
        deps = self._deps
        await ensure_account(deps.client, ObjectName(NODE_AGENT_NAMESPACE, NODE_AGENT_ACCOUNT))
        await deps.client.ensure(PODS, NODE_AGENT_NAMESPACE, agent_pod(node))
        name = ObjectName(NODE_AGENT_NAMESPACE, f"{NODE_AGENT_ACCOUNT}-{node}")
        pod = await deps.client.get(PODS, name)
        network = await deps.network.add_pod(node, name)
        status = running_status(pod, network.address, timestamp(deps.clock.wall()))
        await keep_writing_status(deps.client, pod, status, deps.clock)
        folder = pod_folder(deps.state, name, node)
        return AgentRun(pod, network, node_form(node, network), folder, deps.policy, deps.state / EXPLAIN_TOKEN)

    async def _wait_listening(self, run: AgentRun) -> None:
        """Wait until the agent listens, or a timeout passes."""
        clock = self._deps.clock
        # An agent that never listens must not block the others.
        deadline = clock.now() + _TIMEOUT
        while clock.now() < deadline:
            with suppress(OSError, NetworkError):
                (await self._connect(run.network.address, AGENT_PORT)).close()
                return
            await clock.sleep(_PAUSE)
