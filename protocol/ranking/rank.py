"""The rank of an expansion: its price relative to a perfect fit, weighted by how well the node suits the cluster.

``rank = suppress(unfitness, count) * (C + X) / (T + X)``, with the actual price C, the price T of a perfect fit, and
the damper's price X. The lowest wins, ties keep their order, and options without a price or a finite rank are dropped
(S2.3-S2.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, tanh

from protocol.ranking.config import RankingConfig
from protocol.ranking.prices import Needs, damper_price, perfect_price


@dataclass(frozen=True, slots=True)
class Option:
    """Adding ``count`` nodes of ``node``, at ``price`` per node and hour (None: unknown), to run ``pods``."""

    group: str
    count: int
    node: Needs
    price: float | None
    pods: tuple[Needs, ...]
    exists: bool = True


@dataclass(frozen=True, slots=True)
class Ranked:
    """An option with its rank (lower is better), and its unfitness for explanations."""

    option: Option
    rank: float
    unfitness: float


def preferred_vcpus(cluster_nodes: int, config: RankingConfig) -> float:
    """The preferred vCPUs of a node in a cluster of this many nodes (S2.6).

    >>> preferred_vcpus(2, RankingConfig()), preferred_vcpus(1000, RankingConfig())
    (1, 32)
    """
    # Never exhausted: the configuration ensures that the last size covers all larger clusters.
    return next(
        size.vcpus for size in config.preferred_sizes if cluster_nodes <= (inf if size.nodes is None else size.nodes)
    )


def unfitness(preferred_cpu: float, node_cpu: float) -> float:
    """The ratio of a node's vCPUs to the preferred number, or its inverse, whichever is at least 1 (S2.3).

    >>> unfitness(4, 8), unfitness(4, 4)
    (2.0, 1.0)
    """
    return max(preferred_cpu / node_cpu, node_cpu / preferred_cpu)


def suppress(unfit: float, count: int, over: float) -> float:
    """``unfit`` reduced towards 1 the more nodes are added at once (S2.4).

    >>> suppress(3.0, 1, 15.0), suppress(3.0, 1000, 15.0)
    (3.0, 1.0)
    """
    return (unfit - 1) * (1 - tanh((max(1, count) - 1) / over)) + 1


def rank(paid: float, perfect: float, damper: float, unfit: float) -> float | None:
    """``unfit * (C + X) / (T + X)`` (S2.5); None if that is not finite.

    >>> rank(paid=2.0, perfect=1.0, damper=1.0, unfit=2.0)
    3.0
    >>> rank(paid=1.0, perfect=0.0, damper=0.0, unfit=1.0) is None
    True
    """
    # ``not … > 0`` also catches NaN.
    if not perfect + damper > 0:
        return None
    weighed = unfit * (paid + damper) / (perfect + damper)
    return weighed if isfinite(weighed) else None


def rank_options(options: Sequence[Option], cluster_nodes: int | None, config: RankingConfig) -> list[Ranked]:
    """The valid options, best first; equal ranks keep their order. Without ``cluster_nodes``, no node size is
    preferred.

    A pod that several options share as the same object is priced once.

    >>> from protocol.units import Resources
    >>> node, pod = Needs(Resources.parse(4, "16Gi")), Needs(Resources.parse(3, "12Gi"))
    >>> options = [Option("dear", 1, node, 2.0, (pod,)), Option("cheap", 1, node, 1.0, (pod,))]
    >>> [ranked.option.group for ranked in rank_options(options, 3, RankingConfig())]
    ['cheap', 'dear']
    """
    preferred = None if cluster_nodes is None else preferred_vcpus(cluster_nodes, config)
    # By identity, because pricing a pod again for each option would dominate the cost of ranking.
    pods = {id(pod): pod for option in options for pod in option.pods}
    prices = {key: perfect_price(pod, config) for key, pod in pods.items()}
    damper = damper_price(config)
    usable = (
        _rank_one(option, preferred, sum([prices[id(pod)] for pod in option.pods]), damper, config)
        for option in options
    )
    return sorted((ranked for ranked in usable if ranked is not None), key=lambda ranked: ranked.rank)


def _rank_one(
    option: Option, preferred: float | None, perfect: float, damper: float, config: RankingConfig
) -> Ranked | None:
    cores = option.node.resources.cpu.as_cores
    if option.price is None or option.count < 1 or cores <= 0:
        return None
    # Without a preferred size the ratio is 1, so unfitness has no effect.
    unfit = suppress(unfitness(preferred or cores, cores), option.count, config.suppress_over)
    # Nodes with GPUs are reserved for pods that need them.
    if option.node.gpus and not any(pod.gpus for pod in option.pods):
        unfit = config.unwanted_gpu_unfitness
    base = rank(option.price * option.count, perfect, damper, unfit)
    if base is None:
        return None
    return Ranked(option, base if option.exists else base * config.new_group_factor, unfit)
