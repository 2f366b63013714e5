"""The family ranking: prices and ranks of ``protocol.ranking``, the expander's wire, and what is declined (S2)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Final

from protocol.ranking.config import Damper, PreferredSize, Prices, RankingConfig
from protocol.ranking.prices import MIB, Needs, damper_price, is_accelerator, perfect_price, price_keys
from protocol.ranking.rank import (
    Option,
    preferred_vcpus,
    rank,
    rank_options,
    suppress,
    unfitness,
)
from protocol.units import Bytes, MilliCpu, Resources
from scheduler_plugin.expander.scaleup import ScaleUp
from scheduler_plugin.expander.wire import GB, LOCAL_STORAGE, decode_scale_up, encode_groups
from tests.protocol.ranking.best_options import best_options
from tests.vectors.case import Case
from tests.vectors.registry import Check, Declined, Family

DEFAULTS: Final = RankingConfig()
_VCPUS_PER_PRICE: Final = 1e9
"""So many vCPUs cost 1 where a case names prices: a thousandth of a vCPU is then no rounding."""

_UPSTREAM_SIZES: Final = ((2, 1), (6, 2), (20, 4), (60, 8), (200, 16), (inf, 32))
"""The original's preferred vCPUs by the number of nodes in the cluster."""


def needs(cpu: float, mem_gib: float = 0.0, gpus: int = 0, storage_gb: float = 0.0) -> Needs:
    return Needs(Resources(MilliCpu.parse(cpu), Bytes(round(mem_gib * 1024 * MIB))), gpus, storage_gb)


def pod_price(case: Case) -> float:
    given, prices = case.input, Prices()
    config = RankingConfig(
        prices=Prices(
            cpu=given.get("cpu_price", prices.cpu),
            mem_gib=given.get("mem_price", prices.mem_gib),
            gpu=given.get("gpu_price", prices.gpu),
            storage_50gb=given.get("storage_price", prices.storage_50gb),
        )
    )
    gpus, storage = int(given.get("gpu", 0)), given.get("storage_gb", 0.0)
    return perfect_price(needs(given["cpu"], given.get("mem_gib", 0.0), gpus, storage), config)


def rank_of(case: Case) -> float | None:
    given = case.input
    unfit = suppress(given.get("unfitness", 1), given.get("node_count", 1), DEFAULTS.suppress_over)
    return rank(given["C"], given["T"], given["X"], unfit)


def raw_c_over_t(case: Case) -> float | None:
    given = case.input
    config = RankingConfig(prices=Prices(cpu=given.get("cpu_price", DEFAULTS.prices.cpu)))
    return rank(given["C"], perfect_price(needs(given["pod_cpu"]), config), 0.0, 1.0)


def rank_options_of(case: Case) -> dict[str, Any]:
    """Prices of a case become pods: a price of 1 is a pod of this many vCPUs that it costs 1."""
    given = case.input
    used = {name for option in given["options"].values() for name in option["pods"]}
    priced = {name: given["pod_prices"].get(name) for name in used}
    pods = {name: _costs(price) for name, price in priced.items() if price is not None}
    damper = given.get("stabilization_price")
    config = RankingConfig(
        prices=Prices(cpu=1 / _VCPUS_PER_PRICE, mem_gib=0.0),
        damper=Damper(cpu=_VCPUS_PER_PRICE * (damper_price(DEFAULTS) if damper is None else damper), mem_mib=0),
        preferred_sizes=(PreferredSize(vcpus=given["preferred_cpu"]),),
    )
    prices = {group: given["node_prices"].get(group) for group in given["options"]}
    options = [
        Option(
            group,
            option["count"],
            needs(option["cpu"], gpus=int(option.get("gpu", 0))),
            prices.get(group) if pods.keys() >= set(option["pods"]) else None,
            tuple(pods[name] for name in option["pods"] if name in pods),
            option.get("exists", True),
        )
        for group, option in given["options"].items()
    ]
    ranked = rank_options(options, cluster_nodes=1, config=config)
    best = best_options(ranked)
    return {"winner": best[0].group if best else None, "scores": {one.option.group: one.rank for one in ranked}}


def _costs(price: float) -> Needs:
    return Needs(Resources(MilliCpu(round(price * _VCPUS_PER_PRICE * 1000)), Bytes(0)))


def preferred_memory(case: Case) -> float:
    nodes = case.input["cluster_nodes"]
    preferred = preferred_vcpus(nodes, DEFAULTS)
    if case.semantics == "upstream" and preferred != next(size for most, size in _UPSTREAM_SIZES if nodes <= most):
        raise Declined("the seed's sizes change at 80 and 300 nodes, the original's at 60 and 200 (S2.6)")
    return preferred * DEFAULTS.preferred_mib_per_vcpu


def rank_ties(case: Case) -> list[str]:
    """A score becomes the price of one node for a pod of one vCPU, with no damper and a perfect fit."""
    config = RankingConfig(
        prices=Prices(cpu=1.0, mem_gib=0.0),
        damper=Damper(cpu=0, mem_mib=0),
        preferred_sizes=(PreferredSize(vcpus=1),),
    )
    options = [Option(group, 1, needs(1), score, (needs(1),)) for group, score in case.input["scores"].items()]
    return [option.group for option in best_options(rank_options(options, 1, config))]


def read_request(case: Case) -> dict[str, Any]:
    asked: ScaleUp = decode_scale_up(bytes.fromhex(case.input["hex"]))
    return {
        "options": [
            [option.group, option.nodes, [[pod.key.rpartition("/")[2], *_amounts(pod.needs)] for pod in option.pods]]
            for option in asked.options
        ],
        "nodes": {group: [list(shape.price_keys), *_amounts(shape.offers)] for group, shape in asked.shapes.items()},
    }


def expected_request(case: Case) -> dict[str, Any]:
    """The expected request as a decision uses it: sizes, counts, and the price keys among the labels."""
    return {
        "options": [
            [option["nodeGroupId"], option["nodeCount"], [[pod["name"], *_parsed(pod)] for pod in option["pods"]]]
            for option in case.expected["options"]
        ],
        "nodes": {
            group: [list(price_keys(node.get("labels", {}))), *_parsed(node)]
            for group, node in case.expected["nodes"].items()
        },
    }


def _amounts(found: Needs) -> list[float]:
    return [found.resources.cpu.value, found.resources.mem.value, found.gpus, found.storage_gb]


def _parsed(thing: Mapping[str, Any]) -> list[float]:
    """The amounts of a pod or node, as ``_amounts``."""
    amounts = thing.get("requests") or thing.get("capacity") or thing.get("allocatable") or {}
    resources = Resources.parse(amounts.get("cpu", 0), amounts.get("memory", 0))
    gpus = sum(int(amounts[name]) for name in amounts if is_accelerator(name))
    return _amounts(Needs(resources, gpus, Bytes.parse(amounts.get(LOCAL_STORAGE, 0)).value / GB))


_NOT_FOR_A_DECISION: Final = {
    "expected.options.*.debug": "the autoscaler's own words",
    "expected.options.*.annotations.*": "a pod is ranked by its requests",
    "expected.nodes.*.name": "a node is ranked by its group",
    "expected.nodes.*.labels.*": "only some labels are keys of a price table",
    "expected.nodes.*.allocatable.*": "a price is for what the node has",
}

FAMILY: Final = Family(
    "ranking",
    groups={
        "node_unfitness": lambda case: unfitness(case.input["preferred_cpu"], case.input["node_cpu"]),
        "suppress": lambda case: suppress(case.input["unfitness"], case.input["node_count"], DEFAULTS.suppress_over),
        "rank": rank_of,
        "rank_nan": rank_of,
        "raw_c_over_t": raw_c_over_t,
        "rank_options": rank_options_of,
        "rank_ties": rank_ties,
        "preferred_cpu": Check(
            lambda case: preferred_vcpus(case.input["cluster_nodes"], DEFAULTS),
            expected=lambda case: case.expected["seed"],
            ignores={"expected.code": "the seed's table is binding, not the original's (S2.6)"},
        ),
        "preferred_memory_mib": preferred_memory,
        "pod_price": pod_price,
        "grpc_wire_request": Check(read_request, expected=expected_request, ignores=_NOT_FOR_A_DECISION),
        "grpc_wire_response": lambda case: {"hex": encode_groups([(g, 0, "") for g in case.input["options"]]).hex()},
    },
    declined={
        "linear_combination_w2": "the seed document rejects its own linear combination (S2)",
        "billing_hours": "rates per hour are compared; nothing is billed, so nothing is rounded to minutes (S2.1)",
        "priority_filter": "the autoscaler's own priority expander, which can stand in front of ours (S2.8a)",
        "grpc_client_outcome": "what the autoscaler does with an answer, not what we answer (S2.8a)",
    },
)
