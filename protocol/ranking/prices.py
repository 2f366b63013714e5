"""Prices per hour: of a node, from a table, and of a pod, as on a machine that fits it perfectly (S2.1).

Among extended resources, only accelerators have a price: GPUs and slices of them, Gaudi, Neuron, TPUs and others
(S2.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from protocol.names import LABEL_MACHINE, LABEL_MACHINE_OLD, LABEL_NODE_GROUP
from protocol.ranking.config import RankingConfig
from protocol.units import Bytes, MilliCpu, Resources

MIB = 1024**2  # bytes


@dataclass(frozen=True, slots=True)
class Needs:
    """The requests of a pod, or the capacity of a node. ``gpus`` counts accelerators of any kind; storage is local."""

    resources: Resources
    gpus: int = 0
    storage_gb: float = 0.0

    def __add__(self, other: Needs) -> Needs:
        return Needs(self.resources + other.resources, self.gpus + other.gpus, self.storage_gb + other.storage_gb)

    def at_least(self, other: Needs) -> Needs:
        """The larger of each."""
        resources = self.resources.at_least(other.resources)
        return Needs(resources, max(self.gpus, other.gpus), max(self.storage_gb, other.storage_gb))


def perfect_price(needs: Needs, config: RankingConfig) -> float:
    """The price per hour of a machine with exactly this capacity.

    >>> round(perfect_price(Needs(Resources.parse(2, "8Gi")), RankingConfig()), 6)
    0.101916
    """
    prices = config.prices
    return (
        needs.resources.cpu.as_cores * prices.cpu
        + needs.resources.mem.as_gib * prices.mem_gib
        + needs.gpus * prices.gpu
        + needs.storage_gb / 50 * prices.storage_50gb  # the price is per 50 GB
    )


def damper_price(config: RankingConfig) -> float:
    """X in the rank's formula: the price per hour of the damper's pod (S2.5).

    >>> damper_price(RankingConfig()) > 0
    True
    """
    # The damper's pod has no accelerators or storage: it only dampens small differences.
    pod = Resources(MilliCpu.parse(config.damper.cpu), Bytes(round(config.damper.mem_mib * MIB)))
    return perfect_price(Needs(pod), config)


def price_key(keys: Iterable[str], config: RankingConfig) -> str | None:
    """The first of ``keys`` (see ``price_keys``) in the price table; None if none is.

    >>> price_key(("pool", "m5"), RankingConfig(node_prices={"m5": 0.5}))
    'm5'
    """
    return next((key for key in keys if key in config.node_prices), None)


def node_price(keys: Iterable[str], needs: Needs, config: RankingConfig) -> float:
    """The price per hour of a node: of the first of ``keys`` in the table, otherwise the sum of its parts' prices.

    >>> config = RankingConfig(node_prices={"m5": 0.5})
    >>> node_price(("group", "m5"), Needs(Resources.parse(2, "8Gi")), config)
    0.5
    """
    key = price_key(keys, config)
    return perfect_price(needs, config) if key is None else config.node_prices[key]


def is_estimated(keys: Iterable[str], config: RankingConfig) -> bool:
    """Return True if there is a price table and it contains none of ``keys``.

    The prices of the node's parts may then be in another currency, and not comparable with those in the table (S2.5).

    >>> config = RankingConfig(node_prices={"m5": 0.5})
    >>> is_estimated(("group", "m5"), config), is_estimated(("m6",), config), is_estimated(("m6",), RankingConfig())
    (False, True, False)
    """
    return bool(config.node_prices) and price_key(keys, config) is None


_ORDINARY: Final = frozenset(
    {
        "autoscaling.neon.tech",  # devices of guests
        "devices.kubevirt.io",  # /dev/kvm, tun, vhost-net
        "kubernetes.azure.com",  # MiB of enclaves (sgx_epc_mem_in_MiB)
        "networking.gke.io.networks",  # addresses in each network of a node with several
        "sgx.intel.com",  # bytes of enclaves (epc)
        "smarter-devices",  # device files of the host, such as /dev/fuse
        "vpc.amazonaws.com",  # network interfaces and addresses of every EC2 instance
    }
)
"""Domains of resources that ordinary nodes provide at no extra price."""


@lru_cache(maxsize=4096)
def is_accelerator(resource: str) -> bool:
    """Return True for an extended resource (``domain/name``), unless ordinary nodes provide it, too.

    >>> [is_accelerator(name) for name in ("nvidia.com/mig-1g.5gb", "google.com/tpu", "hugepages-2Mi", "memory")]
    [True, True, False, False]
    """
    domain, slash, _ = resource.partition("/")
    # kubernetes.io and its subdomains are reserved for Kubernetes' own resources.
    is_native = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    return bool(slash) and not is_native and domain not in _ORDINARY


NODE_GROUP_LABELS: Final = (
    LABEL_NODE_GROUP,
    "agentpool",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "doks.digitalocean.com/node-pool",
    "eks.amazonaws.com/nodegroup",
    "ibm-cloud.kubernetes.io/worker-pool-name",
    "k8s.scaleway.com/pool-name",
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",
    "kops.k8s.io/instancegroup",
    "kubernetes.azure.com/agentpool",
    "lke.linode.com/pool-id",
    "yandex.cloud/node-group-id",
)
"""Labels whose value is the name of a node group: our own, for any cluster, and the clouds' labels."""

SPOT_LABELS: Final[Mapping[str, str]] = {
    "cloud.google.com/gke-preemptible": "true",
    "cloud.google.com/gke-provisioning": "spot",
    "cloud.google.com/gke-spot": "true",
    "eks.amazonaws.com/capacityType": "spot",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/lifecycle": "spot",
}
"""Labels of nodes that the cloud may reclaim, with their values in lower case."""

SPOT_SUFFIX: Final = "/spot"
"""Suffix of an instance type in the key of its spot price. No instance type contains a slash."""

PRICE_LABELS: Final = (*NODE_GROUP_LABELS, *SPOT_LABELS, LABEL_MACHINE, LABEL_MACHINE_OLD)
"""All labels that ``price_keys`` reads."""


def price_keys(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of a node with these labels, most specific first: its groups, ``TYPE/spot``, its type.

    >>> price_keys({"karpenter.sh/nodepool": "cheap", "karpenter.sh/capacity-type": "spot", LABEL_MACHINE: "m5"})
    ('cheap', 'm5/spot', 'm5')
    """
    groups = [group for label in NODE_GROUP_LABELS if (group := labels.get(label))]
    machine = labels.get(LABEL_MACHINE) or labels.get(LABEL_MACHINE_OLD)
    # Without a spot price, the ordinary price is better than none.
    is_spot = any((labels.get(label) or "").lower() == value for label, value in SPOT_LABELS.items())
    types = [] if not machine else [f"{machine}{SPOT_SUFFIX}", machine] if is_spot else [machine]
    # Remove duplicates: a group may be named like an instance type, and several labels may name the same group.
    return tuple(dict.fromkeys((*groups, *types)))
