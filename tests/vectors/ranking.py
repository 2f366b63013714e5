"""The family ranking: prices and ranks of ``protocol.ranking``, the expander's wire, and what is declined (S2)."""

from __future__ import annotations

from typing import Any, Final

from protocol.ranking.config import Damper, PreferredSize, Prices, RankingConfig
from protocol.ranking.prices import MIB, Needs, perfect_price
from protocol.ranking.rank import (
    Option,
    best_options,
    preferred_mem_mib,
    preferred_vcpus,
    rank,
    rank_options,
    suppress,
    unfitness,
)
from protocol.units import ZERO, Bytes, MilliCpu, Resources
from scheduler_plugin.expander.scaleup import ScaleUp
from scheduler_plugin.expander.wire import decode_scale_up, encode_groups
from tests.vectors.case import Case
from tests.vectors.registry import Check, Family

DEFAULTS: Final = RankingConfig()


def needs(cpu: float, mem_gib: float = 0.0, gpus: int = 0) -> Needs:
    return Needs(Resources(MilliCpu.parse(cpu), Bytes(round(mem_gib * 1024 * MIB))), gpus)


def pod_price(case: Case) -> float:
    given = case.input
    prices = Prices(cpu=given.get("cpu_price", 0.033174), mem_gib=given.get("mem_price", 0.004446))
    return perfect_price(needs(given["cpu"], given["mem_gib"], given.get("gpu", 0)), RankingConfig(prices=prices))


def rank_of(case: Case) -> float | None:
    given = case.input
    unfit = suppress(given.get("unfitness", 1), given.get("node_count", 1), DEFAULTS.suppress_over)
    return rank(given["C"], given["T"], given["X"], unfit)


def raw_c_over_t(case: Case) -> float | None:
    given = case.input
    config = RankingConfig(prices=Prices(cpu=given["cpu_price"]))
    return rank(given["C"], perfect_price(needs(given["pod_cpu"]), config), 0.0, 1.0)


def rank_options_of(case: Case) -> dict[str, Any]:
    """Pod prices of a case become pods of so many vCPUs at a price of 1 per vCPU."""
    given = case.input
    pods = {name: needs(price) for name, price in given["pod_prices"].items()}
    config = RankingConfig(
        prices=Prices(cpu=1.0, mem_gib=0.0),
        damper=Damper(cpu=given["stabilization_price"], mem_mib=0),
        preferred_sizes=(PreferredSize(vcpus=given["preferred_cpu"]),),
    )
    options = [
        Option(
            group,
            option["count"],
            needs(option["cpu"]),
            given["node_prices"].get(group),
            tuple(pods[pod] for pod in option["pods"]),
            option.get("exists", True),
        )
        for group, option in given["options"].items()
    ]
    ranked = rank_options(options, cluster_nodes=1, config=config)
    return {"winner": best_options(ranked)[0].group, "scores": {one.option.group: one.rank for one in ranked}}


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
            [
                option.group,
                option.nodes,
                [[pod.key.rpartition("/")[2], *_amounts(pod.needs.resources)] for pod in option.pods],
            ]
            for option in asked.options
        ],
        "nodes": {group: [shape.machine, *_amounts(shape.offers.resources)] for group, shape in asked.shapes.items()},
    }


def expected_request(case: Case) -> dict[str, Any]:
    """What a decision needs of the expected request: sizes, counts, and the machine type among the labels."""
    pods = {
        option["nodeGroupId"]: [[pod["name"], *_parsed(pod["requests"])] for pod in option["pods"]]
        for option in case.expected["options"]
    }
    return {
        "options": [
            [option["nodeGroupId"], option["nodeCount"], pods[option["nodeGroupId"]]]
            for option in case.expected["options"]
        ],
        "nodes": {
            group: [node["labels"]["node.kubernetes.io/instance-type"], *_parsed(node["capacity"])]
            for group, node in case.expected["nodes"].items()
        },
    }


def _amounts(resources: Resources) -> list[int]:
    return [resources.cpu.value, resources.mem.value]


def _parsed(amounts: dict[str, str]) -> list[int]:
    return _amounts(Resources.parse(amounts["cpu"], amounts["memory"]) if amounts else ZERO)


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
        ),
        "preferred_memory_mib": lambda case: preferred_mem_mib(case.input["cluster_nodes"], DEFAULTS),
        "pod_price": pod_price,
        "grpc_wire_request": Check(read_request, expected=expected_request),
        "grpc_wire_response": lambda case: {"hex": encode_groups([(g, 0, "") for g in case.input["options"]]).hex()},
    },
    declined={
        "preferred-mem-243": "the seed's sizes change at 80 and 300 nodes, the original's at 60 and 200 (S2.6)",
        "linear_combination_w2": "the seed document rejects its own linear combination (S2)",
        "billing_hours": "rates per hour are compared; nothing is billed, so nothing is rounded to minutes (S2.1)",
        "priority_filter": "the autoscaler's own priority expander, which can stand in front of ours (S2.8a)",
        "grpc_client_outcome": "what the autoscaler does with an answer, not what we answer (S2.8a)",
    },
)
