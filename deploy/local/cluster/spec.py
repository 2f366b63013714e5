"""What a local cluster is asked to be (pure), and how that is kept in its folder."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from deploy.local.kubelet.node_object import NodeSpec
from protocol.units import QuantityError, Resources

MOST_SIDECARS: Final = 8
"""With more simulated VMs than this, one agent per node serves them all: a process beside each would be too heavy."""


class SpecError(ValueError):
    """The cluster cannot be as asked; the message says why."""


class ClusterSpec(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A cluster as asked for. ``agents`` of ``agent_form`` decides ``auto``; ``load`` is what simulated VMs play."""

    guests: Literal["qemu", "simulated"] = "qemu"
    nodes: int = 2
    node_cpu: str = "8"
    node_memory: str = "16Gi"
    agents: Literal["auto", "sidecar", "node"] = "auto"
    network: str = "auto"
    vms: int = 0
    policy: str = ""
    load: str = ""

    @property
    def node_specs(self) -> list[NodeSpec]:
        """The nodes. Raises ``SpecError`` where their size is unusable or there are none."""
        if self.nodes < 1:
            raise SpecError(f"a cluster needs at least one node, not {self.nodes}")
        try:
            capacity = Resources.parse(self.node_cpu, self.node_memory)
        except QuantityError as error:
            raise SpecError(f"the size of the nodes: {error}") from error
        return [NodeSpec(f"node-{number}", capacity) for number in range(1, self.nodes + 1)]

    @property
    def agent_form(self) -> tuple[Literal["sidecar", "node"], str]:
        """How agents run, and why in words. Raises ``SpecError`` for a form that cannot work with these guests."""
        if self.agents == "node" and self.guests == "qemu":
            raise SpecError("QEMU guests answer only inside their pods: agents must be sidecars (--agents sidecar)")
        if self.agents != "auto":
            return self.agents, "as asked"
        if self.guests == "simulated" and self.vms > MOST_SIDECARS:
            return "node", f"one process for each node: a sidecar each would be many for {self.vms} VMs"
        return "sidecar", "one agent in each VM's pod"
