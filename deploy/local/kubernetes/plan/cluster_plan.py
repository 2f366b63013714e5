"""The plan of a cluster: its nodes, its addresses, and the paths inside of nodes (pure).

- Addresses repeat in every cluster: each has network namespaces of its own.
- A node sees its own files and the programs at fixed paths (``IN_NODE``), wherever the cluster's folder is.
- A node's pods have the subnet of the node's number; every other node has a plain route to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final

from protocol.kubernetes.conditions import holds
from protocol.kubernetes.objects import Json, name_of
from protocol.units import MilliCpu, Resources

CONTROL_HOST: Final = "10.100.0.1"
API_PORT: Final = 6443
ETCD_PORT: Final = 2379
NODE_PREFIX: Final = 16
POD_RANGE: Final = "10.244.0.0/16"
SERVICE_RANGE: Final = "10.96.0.0/16"
# The first address of the range, which Kubernetes gives to the Service `kubernetes`.
API_SERVICE: Final = "10.96.0.1"
DNS_SERVICE: Final = "10.96.0.10"
DOMAIN: Final = "cluster.local"
ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
MOST_NODES: Final = 50

VM_RANGE: Final = IPv4Network("10.111.0.0/16")
"""The flat network of VMs if its manifest is applied unchanged (``--addresses`` of the controller)."""
VM_VISITOR: Final = "10.111.255.254"
"""This machine's own address there, which no VM gets."""
# Less than 1500 bytes, to leave room for the header of the tunnel between nodes.
VM_RANGE_MTU: Final = 1450

IN_NODE: Final = "/run/autoscale"
NODE_FILES: Final = f"{IN_NODE}/node"
PROGRAMS: Final = f"{IN_NODE}/programs"
IMAGES: Final = f"{IN_NODE}/images"
BOOTED: Final = f"{IN_NODE}/booted"
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"

# Images that are put on every node.
PAUSE_IMAGE: Final = "localhost/pause:1"
COREDNS_IMAGE: Final = "localhost/coredns:1"
METRICS_SERVER_IMAGE: Final = "localhost/metrics-server:1"
VPA_RECOMMENDER_IMAGE: Final = "localhost/vpa-recommender:1"
BUSYBOX_IMAGE: Final = "localhost/busybox:1"
"""A small image for trying things out: the machine's own busybox."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node. ``number`` counts from 1 and gives its addresses; ``size`` is what its kubelet offers."""

    name: str
    number: int
    size: Resources
    labels: Mapping[str, str]
    taints: Sequence[Json]

    @property
    def address(self) -> str:
        """The node's own address."""
        # Addresses below .11 are reserved for the control plane.
        return f"10.100.0.{10 + self.number}"

    @property
    def pod_subnet(self) -> str:
        """The addresses of its pods."""
        return f"10.244.{self.number}.0/24"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A cluster. ``machine`` is what this machine has; no node offers more memory, but it may offer more CPUs.
    ``add_ons`` are names of ``programs.versions.ADD_ONS``.
    """

    name: str
    version: str
    nodes: Sequence[NodePlan]
    machine: Resources
    add_ons: Sequence[str] = ()

    def shown_to(self, node: NodePlan) -> Resources:
        """The machine size that the node's programs see: at least as many CPUs as it offers."""
        # The pods of all nodes share the machine's CPUs, so what a node offers is a matter of bookkeeping.
        return Resources(max(self.machine.cpu, MilliCpu.cores(node.size.cpu.whole_cpus)), self.machine.mem)

    def routes(self, to: NodePlan | None) -> list[str]:
        """The routes to the pods of the other nodes, for a node (of the control plane: ``None``)."""
        return [f"route add {node.pod_subnet} via {node.address} dev br0" for node in self.nodes if node != to]

    @property
    def cgroup(self) -> str:
        """The control group of all of the cluster's pods, in every hierarchy."""
        return cgroup_of(self.name)

    def node_cgroup(self, node: NodePlan) -> str:
        """The control group of the pods of ``node``."""
        return f"{self.cgroup}/{node.name}"


def offered(asked: Resources, machine: Resources, *, shows_cpus: bool) -> Resources:
    """A node's offer for a request: no more memory than ``machine`` has, and more CPUs if it can be
    shown more.
    """
    # Memory is real: pods that use more than the machine has are killed. CPUs are shared in time.
    return Resources(asked.cpu if shows_cpus else min(asked.cpu, machine.cpu), min(asked.mem, machine.mem))


def cgroup_of(cluster: str) -> str:
    """The control group of the cluster of that name."""
    return f"autoscale.{cluster}"


def unavailable(objects: list[Json]) -> list[str]:
    """The names of the objects that are not Available, in order."""
    return sorted(name_of(thing).name for thing in objects if not holds(thing, "Available"))


def missing_nodes(plan: ClusterPlan, nodes: list[Json]) -> list[str]:
    """The planned nodes that are not Ready, or do not exist."""
    # Compared with the plan, because a node that has not registered yet is missing from the list.
    ready = {name_of(node).name for node in nodes if holds(node, "Ready")}
    return [node.name for node in plan.nodes if node.name not in ready]


def node_object(node: NodePlan) -> Json:
    """The Node as it is made before its kubelet registers, which adopts it: so pod subnet, labels and taints are the
    plan's, even labels that NodeRestriction keeps a kubelet from setting. Kubernetes itself adds and removes the taint
    of a node that is not ready.
    """
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", **node.labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"podCIDR": node.pod_subnet, "podCIDRs": [node.pod_subnet], "taints": list(node.taints)},
    }
