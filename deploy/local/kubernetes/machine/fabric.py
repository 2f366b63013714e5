"""The network between the control plane, the nodes and their pods: plain routes in namespaces, and nothing outside."""

from __future__ import annotations

from deploy.local.kubernetes.plan.cluster_plan import CONTROL_HOST, NODE_PREFIX, ClusterPlan
from deploy.neonvm.network.namespaces import NamespaceNetwork


async def lay_out(network: NamespaceNetwork, plan: ClusterPlan) -> None:
    """Gives each node its address and its routes; the network is up. Raises ``NetworkError``."""
    for node in plan.nodes:
        await network.add_node(node.name)
        address = f"address add {node.address}/{NODE_PREFIX} dev br0"
        await network.configure(node.name, address, f"route add default via {CONTROL_HOST}", *plan.routes(node))
    # The control plane has to reach pods itself, for webhooks and aggregated APIs.
    await network.configure(None, *plan.routes(None))
