"""Specification of a local cluster (pure), as its folder stores it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final, Literal

import msgspec

from deploy.local.apiserver.apimachinery.names import key_complaints, value_complaints
from deploy.local.kubelet.node_object import EFFECTS, NodeSpec
from deploy.local.kubernetes.plan.cluster_plan import MOST_NODES
from deploy.local.kubernetes.programs.versions import ADD_ONS, SUPPORTED
from protocol.kubernetes.objects import Json
from protocol.units import QuantityError, Resources

MOST_SIDECARS: Final = 8
"""With more simulated VMs than this, one agent per node serves them all: a process beside each would be too heavy."""


_LEAST_NODE: Final = 8
_EACH_VM: Final = 1.5
"""vCPUs that a simulated VM of the usual load wants at most moments."""


def usual_node_cpu(vms: int, nodes: int) -> str:
    """The CPUs of each node if they are not chosen: enough for this many simulated VMs and their load.

    >>> usual_node_cpu(0, 2), usual_node_cpu(2000, 100)
    ('8', '30')
    """
    return str(max(_LEAST_NODE, ceil(_EACH_VM * vms / nodes)))


class SpecError(ValueError):
    """The specification is invalid; the message says why."""


class ClusterSpec(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A cluster as asked for. ``agents`` of ``agent_form`` decides ``auto``; ``load`` is what simulated VMs play.
    ``groups``: VMs can form groups, which a process of their own runs. ``kubernetes`` is the minor version of a real
    Kubernetes, and empty for the embedded one; ``add_ons`` are what a real one has besides the usual.

    ``node_labels`` are ``NODE=KEY=VALUE``, ``node_taints`` are ``NODE=KEY[=VALUE]:EFFECT``.
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
        """The nodes. Raises ``SpecError`` if their size is unusable or there are none."""
        if self.nodes < 1:
            raise SpecError(f"a cluster needs at least one node, not {self.nodes}")
        try:
            capacity = Resources.parse(self.node_cpu, self.node_memory)
        except QuantityError as error:
            raise SpecError(f"the size of the nodes: {error}") from error
        names = [f"node-{number}" for number in range(1, self.nodes + 1)]
        labels = parse_labels(self.node_labels, names)
        taints = parse_taints(self.node_taints, names)
        return [NodeSpec(name, capacity, labels[name], taints[name]) for name in names]

    def check(self) -> None:
        """Raises ``SpecError`` if there can be no such cluster."""
        # Both properties raise `SpecError` if the cluster is impossible.
        _ = self.node_specs, self.agent_form
        if self.kubernetes and self.kubernetes not in SUPPORTED:
            raise SpecError(f"Kubernetes can be {' or '.join(SUPPORTED)} here, not {self.kubernetes!r}")
        if unknown := [name for name in self.add_ons if name not in ADD_ONS]:
            raise SpecError(f"--with can be {' or '.join(ADD_ONS)}, not {unknown[0]!r}")
        if self.add_ons and not self.kubernetes:
            raise SpecError("--with needs --kubernetes: the embedded Kubernetes runs no programs of others")
        if self.kubernetes and self.nodes > MOST_NODES:
            raise SpecError(f"a real Kubernetes can have {MOST_NODES} nodes here, not {self.nodes}")
        if self.kubernetes and (self.vms or self.load or self.policy or self.groups or self.guests == "simulated"):
            raise SpecError("a real Kubernetes starts empty: VMs, loads, policies and groups are applied with kubectl")

    @property
    def simulated(self) -> int:
        """The number of simulated VMs at the start."""
        return self.vms if self.guests == "simulated" else 0

    @property
    def agent_form(self) -> tuple[Literal["sidecar", "node"], str]:
        """Form of the agents, and the reason in words.

        Raises ``SpecError`` for a form that cannot work with these guests.
        """
        if self.agents == "node" and self.guests == "qemu":
            raise SpecError("QEMU guests answer only inside their pods: agents must be sidecars (--agents sidecar)")
        if self.agents != "auto":
            return self.agents, "as asked"
        # Real guests are few, since each takes a whole QEMU; only simulated ones come by the hundred.
        if self.guests == "simulated" and self.vms > MOST_SIDECARS:
            return "node", f"one process for each node: a sidecar each would be many for {self.vms} VMs"
        return "sidecar", "one agent in each VM's pod"


def parse_labels(given: Sequence[str], nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Labels by node of texts such as ``node-2=zone=b``. Raises ``SpecError``."""
    # Nodes without labels have an entry too: `node_specs` looks up every node.
    by_node: dict[str, dict[str, str]] = {node: {} for node in nodes}
    for argument in given:
        node, _, label = argument.partition("=")
        key, equals, value = label.partition("=")
        if not equals or key_complaints(key) or value_complaints(value):
            raise SpecError(f"a label of a node is NODE=KEY=VALUE, such as node-2=zone=b, not {argument!r}")
        _known(node, nodes)
        by_node[node][key] = value
    return by_node


def parse_taints(given: Sequence[str], nodes: Sequence[str]) -> dict[str, tuple[Json, ...]]:
    """Taints by node of texts such as ``node-1=dedicated=gpu:NoSchedule``. Raises ``SpecError``."""
    by_node: dict[str, tuple[Json, ...]] = dict.fromkeys(nodes, ())
    for argument in given:
        node, _, taint = argument.partition("=")
        key_and_value, _, effect = taint.rpartition(":")
        key, _, value = key_and_value.partition("=")
        if key_complaints(key) or value_complaints(value) or effect not in EFFECTS:
            effects = ", ".join(EFFECTS)
            raise SpecError(
                f"a taint of a node is NODE=KEY[=VALUE]:EFFECT with an effect of {effects}, not {argument!r}"
            )
        _known(node, nodes)
        by_node[node] += ({"key": key, **({"value": value} if value else {}), "effect": effect},)
    return by_node


def _known(node: str, nodes: Sequence[str]) -> None:
    if node not in nodes:
        raise SpecError(f"there is no node {node!r}: the nodes are {', '.join(nodes)}")
