"""The agent's per-node form: one process for each node, with the identity of a pod bound to it (S4.3)."""

from __future__ import annotations

from deploy.local.cluster.content import ensure
from deploy.local.cluster.settings import NODE_AGENT_ACCOUNT, NODE_AGENT_NAMESPACE
from deploy.local.kubelet.agents import per_node
from deploy.local.kubelet.pod_status import running_status
from deploy.local.kubelet.reporting import keep_writing_status
from deploy.local.kubelet.sandbox import NodeDependencies, attend_agent, pod_folder
from deploy.local.kubelet.tokens import ensure_account
from deploy.local.process import ProcessSupervisor
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import PODS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName


def agent_pod(node: str) -> Json:
    """The pod of the agent on ``node``; it asks for nothing, so that VMs have all the room."""
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
            "containers": [{"name": "agent", "image": "autoscaler-agent"}],
        },
    }


class NodeAgents:
    """The agents of all nodes."""

    def __init__(self, deps: NodeDependencies) -> None:
        self._deps = deps
        self.supervisors: dict[str, ProcessSupervisor] = {}

    async def run(self, node: str) -> None:
        """Runs the agent of ``node`` until cancelled. Raises ``ApiError`` and ``NetworkError``."""
        deps = self._deps
        await ensure_account(deps.client, ObjectName(NODE_AGENT_NAMESPACE, NODE_AGENT_ACCOUNT))
        await ensure(deps.client, PODS, NODE_AGENT_NAMESPACE, agent_pod(node))
        name = ObjectName(NODE_AGENT_NAMESPACE, f"{NODE_AGENT_ACCOUNT}-{node}")
        pod = await deps.client.get(PODS, name)
        place = await deps.network.add_pod(node, name)
        status = running_status(pod, place.address, timestamp(deps.clock.wall()))
        await keep_writing_status(deps.client, pod, status, deps.clock)
        run = per_node(pod, node, place, pod_folder(deps.state, name, node), deps.policy)

        def started(supervisor: ProcessSupervisor) -> None:
            self.supervisors[node] = supervisor

        await attend_agent(run, deps, started)
