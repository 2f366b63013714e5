"""Specification of a local cluster, stored in its folder (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final, Literal

import msgspec

from deploy.local.apiserver.apimachinery.names import key_errors, value_errors
from deploy.local.kubelet.node_object import EFFECTS, NodeSpec
from deploy.local.kubernetes.plan.cluster_plan import MAX_NODES
from deploy.local.kubernetes.programs.versions import ADD_ONS, SUPPORTED
from protocol.kubernetes.objects import Json
from protocol.units import QuantityError, Resources

MAX_SIDECARS: Final = 8
"""With more simulated VMs than this, one agent per node: a process per VM would need too much memory."""

_MIN_NODE_CPU: Final = 8
_CPU_PER_VM: Final = 1.5
"""vCPUs that a simulated VM with the default load needs most of the time."""


def default_node_cpu(vms: int, nodes: int) -> str:
    """Default CPUs of each node, enough for ``vms`` simulated VMs with the default load.

    >>> default_node_cpu(0, 2), default_node_cpu(2000, 100)
    ('8', '30')
    """
    return str(max(_MIN_NODE_CPU, ceil(_CPU_PER_VM * vms / nodes)))


class SpecError(ValueError):
    """The specification is invalid; the message says why."""


class ClusterSpec(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Specification of a cluster.

    ``load`` is the load of simulated VMs. ``groups`` starts the groups controller. ``kubernetes`` is the minor version
    of a real Kubernetes, empty for the embedded one; ``add_ons`` are optional programs of a real one. ``node_labels``
    are ``NODE=KEY=VALUE``, ``node_taints`` are ``NODE=KEY[=VALUE]:EFFECT``.
    """

    guests: Literal["qemu", "simulated"] = "qemu"
    nodes: int = 2
    node_cpu: str = "8"
    node_memory: str = "16Gi"
    agents: Literal["auto", "sidecar", "node"] = "auto"
    network: str = "auto"
    vms: int = 0
    policy: str = ""
    load: str = ""
    node_labels: list[str] = []
    node_taints: list[str] = []
    groups: bool = False
    kubernetes: str = ""
    add_ons: list[str] = []

    @property
    def node_specs(self) -> list[NodeSpec]:
        """The nodes. Raises ``SpecError`` if there are none, or their size, labels or taints are invalid."""
        if self.nodes < 1:
            raise SpecError(f"a cluster needs at least one node, not {self.nodes}")
        try:
            capacity = Resources.parse(self.node_cpu, self.node_memory)
        except QuantityError as error:
            raise SpecError(f"invalid node size: {error}") from error
        if not (capacity.cpu and capacity.mem):
            sizes = f"{self.node_cpu} and {self.node_memory}"
            raise SpecError(f"invalid node size: expected CPU and memory above zero, got {sizes}")
        names = [f"node-{number}" for number in range(1, self.nodes + 1)]
        labels = parse_labels(self.node_labels, names)
        taints = parse_taints(self.node_taints, names)
        return [NodeSpec(name, capacity, labels[name], taints[name]) for name in names]

    def check(self) -> None:
        """Raise ``SpecError`` if the specification is invalid."""
        # These properties raise it.
        _ = self.node_specs, self.agent_form
        if self.load and self.guests != "simulated":
            raise SpecError("--load needs --guests simulated: real guests have the load of their clients")
        if self.kubernetes and self.kubernetes not in SUPPORTED:
            raise SpecError(f"--kubernetes-version must be {' or '.join(SUPPORTED)}, not {self.kubernetes!r}")
        if unknown := [name for name in self.add_ons if name not in ADD_ONS]:
            raise SpecError(f"--with must be {' or '.join(ADD_ONS)}, not {unknown[0]!r}")
        if self.add_ons and not self.kubernetes:
            raise SpecError("--with needs --kubernetes: the embedded cluster runs no add-ons")
        if self.kubernetes and self.nodes > MAX_NODES:
            raise SpecError(f"a real Kubernetes can have at most {MAX_NODES} nodes, not {self.nodes}")
        if self.kubernetes and (self.vms or self.load or self.policy or self.groups or self.guests == "simulated"):
            raise SpecError("a real Kubernetes starts empty: apply VMs, policies and groups with kubectl")

    @property
    def simulated(self) -> int:
        """The number of simulated VMs to create."""
        return self.vms if self.guests == "simulated" else 0

    @property
    def agent_form(self) -> tuple[Literal["sidecar", "node"], str]:
        """The agents' form (``auto`` resolved), and the reason for it. Raises ``SpecError`` if it cannot work."""
        if self.agents == "node" and self.guests == "qemu":
            raise SpecError("QEMU guests are reachable only inside their pods: use --agents sidecar")
        if self.agents != "auto":
            return self.agents, "as requested"
        if self.guests == "simulated" and self.vms > MAX_SIDECARS:
            return "node", f"one process per node, because {self.vms} sidecars would be too many"
        return "sidecar", "one agent in each VM's pod"


def parse_labels(arguments: Sequence[str], nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Labels by node, from arguments such as ``node-2=zone=b``; every node has an entry. Raises ``SpecError``."""
    by_node: dict[str, dict[str, str]] = {node: {} for node in nodes}
    for argument in arguments:
        node, _, label = argument.partition("=")
        key, equals, value = label.partition("=")
        if not equals or key_errors(key) or value_errors(value):
            raise SpecError(f"a node label must be NODE=KEY=VALUE, such as node-2=zone=b, not {argument!r}")
        _check_node(node, nodes)
        by_node[node][key] = value
    return by_node


def parse_taints(arguments: Sequence[str], nodes: Sequence[str]) -> dict[str, tuple[Json, ...]]:
    """Taints by node, from arguments such as ``node-1=dedicated=gpu:NoSchedule``. Raises ``SpecError``."""
    by_node: dict[str, tuple[Json, ...]] = dict.fromkeys(nodes, ())
    for argument in arguments:
        node, _, taint = argument.partition("=")
        key_and_value, _, effect = taint.rpartition(":")
        key, _, value = key_and_value.partition("=")
        if key_errors(key) or value_errors(value) or effect not in EFFECTS:
            effects = ", ".join(EFFECTS)
            raise SpecError(f"a node taint must be NODE=KEY[=VALUE]:EFFECT, EFFECT one of {effects}, not {argument!r}")
        _check_node(node, nodes)
        by_node[node] += ({"key": key, **({"value": value} if value else {}), "effect": effect},)
    return by_node


def _check_node(node: str, nodes: Sequence[str]) -> None:
    if node not in nodes:
        raise SpecError(f"no node {node!r}; the nodes are {', '.join(nodes)}")
