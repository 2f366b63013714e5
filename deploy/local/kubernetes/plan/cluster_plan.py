"""The plan of a cluster: its nodes, its addresses, and the paths inside nodes (pure).

- All clusters use the same addresses, in separate network namespaces.
- Inside a node, files and programs are at fixed paths (``IN_NODE``).
- Each node has a pod subnet, derived from its number, and static routes to the other nodes' subnets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final

from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, name_of
from protocol.units import MilliCpu, Resources

CONTROL_HOST: Final = "10.100.0.1"
API_PORT: Final = 6443
ETCD_PORT: Final = 2379
NODE_PREFIX: Final = 16
POD_RANGE: Final = "10.244.0.0/16"
SERVICE_RANGE: Final = "10.96.0.0/16"
# The Service `kubernetes` gets the range's first IP.
API_SERVICE: Final = "10.96.0.1"
DNS_SERVICE: Final = "10.96.0.10"
DOMAIN: Final = "cluster.local"
ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
MAX_NODES: Final = 50

VM_RANGE: Final = IPv4Network("10.111.0.0/16")
"""The VMs' flat network if its manifest is applied unchanged (``--addresses`` of the controller)."""
VM_VISITOR: Final = "10.111.255.254"
"""This machine's IP in ``VM_RANGE``, never given to a VM."""
# 1500 bytes less the VXLAN header.
VM_RANGE_MTU: Final = 1450

IN_NODE: Final = "/run/autoscale"
NODE_FILES: Final = f"{IN_NODE}/node"
PROGRAMS: Final = f"{IN_NODE}/programs"
IMAGES: Final = f"{IN_NODE}/images"
BOOTED: Final = f"{IN_NODE}/booted"
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"

# Images that are imported into every node.
PAUSE_IMAGE: Final = "localhost/pause:1"
COREDNS_IMAGE: Final = "localhost/coredns:1"
METRICS_SERVER_IMAGE: Final = "localhost/metrics-server:1"
VPA_RECOMMENDER_IMAGE: Final = "localhost/vpa-recommender:1"
BUSYBOX_IMAGE: Final = "localhost/busybox:1"
"""This machine's busybox, for experiments and tests."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node. ``number`` (from 1) determines its addresses; ``size`` is its allocatable CPU and memory."""

    name: str
    number: int
    size: Resources
    labels: Mapping[str, str]
    taints: Sequence[Json]

    @property
    def address(self) -> str:
        """The node's IP."""
        # .1 to .10 are reserved for the control plane.
        return f"10.100.0.{10 + self.number}"

    @property
    def pod_subnet(self) -> str:
        """The CIDR of the node's pods."""
        return f"10.244.{self.number}.0/24"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A cluster. ``machine`` is this machine's size; ``add_ons`` are names of ``programs.versions.ADD_ONS``."""

    name: str
    version: str
    nodes: Sequence[NodePlan]
    machine: Resources
    add_ons: Sequence[str] = ()

    def visible_size(self, node: NodePlan) -> Resources:
        """The machine size that the node's kubelet sees: at least the node's CPUs."""
        return Resources(max(self.machine.cpu, MilliCpu.cores(node.size.cpu.whole_cpus)), self.machine.mem)

    def routes(self, to: NodePlan | None) -> list[str]:
        """Static routes to the pods of all other nodes, for node ``to`` or (None) the control plane."""
        return [f"route add {node.pod_subnet} via {node.address} dev br0" for node in self.nodes if node != to]

    @property
    def cgroup(self) -> str:
        """The control group of the cluster's pods."""
        return cgroup_of(self.name)

    def node_cgroup(self, node: NodePlan) -> str:
        """The control group of the pods of ``node``."""
        return f"{self.cgroup}/{node.name}"


def node_size(requested: Resources, machine: Resources, *, overcommit_cpus: bool) -> Resources:
    """The requested node size, limited to the machine's memory and, unless ``overcommit_cpus``, to its CPUs."""
    return Resources(
        requested.cpu if overcommit_cpus else min(requested.cpu, machine.cpu), min(requested.mem, machine.mem)
    )


def cgroup_of(cluster: str) -> str:
    """The control group of cluster ``cluster``."""
    return f"autoscale.{cluster}"


def unavailable(objects: list[Json]) -> list[str]:
    """Sorted names of the objects that are not Available."""
    return sorted(name_of(item).name for item in objects if not is_condition_true(item, "Available"))


def missing_nodes(plan: ClusterPlan, nodes: list[Json]) -> list[str]:
    """The planned nodes that are not Ready or do not exist."""
    ready = {name_of(node).name for node in nodes if is_condition_true(node, "Ready")}
    return [node.name for node in plan.nodes if node.name not in ready]


def node_object(node: NodePlan) -> Json:
    """The Node, created before its kubelet registers.

    So it has the planned pod CIDR, labels and taints, including labels that NodeRestriction forbids kubelets to set.
    """
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", **node.labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"podCIDR": node.pod_subnet, "podCIDRs": [node.pod_subnet], "taints": list(node.taints)},
    }
