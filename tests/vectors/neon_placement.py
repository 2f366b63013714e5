"""The family neon: scores, bind as Reserve, and what becomes of reservations, against the real ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from protocol.messages import ObjectName
from protocol.ranking.config import ScoreCurve
from protocol.ranking.node_score import NodeUse, extender_score, node_score
from protocol.units import Bytes, Instant, MilliCpu, Resources
from scheduler_plugin.ledger import PodFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.placement import FITS
from tests.vectors.bench import MOST, node_facts, size
from tests.vectors.case import Case
from tests.vectors.registry import Answer, Check, Declined

NOW: Final = Instant(0)
_CALL: Final = re.compile(r"(?P<verb>\w+)\((?P<arguments>[^)]*)\)(?:=(?P<outcome>.*))?")


def score_of(case: Case) -> object:
    """The score of a node with the pod on it, 0..100 (S2.8b)."""
    given = case.input
    cpu, mem = given["cpu_with_pod"], given["mem_with_pod"]
    if any(each["total"] != each["max_seen"] for each in (cpu, mem)):
        raise Declined("a small node is worth as much as a large one: price breaks ties, not size (S2.8b)")
    curve = ScoreCurve(empty=given["min_usage_score"], full=given["max_usage_score"], peak=given["peak"])
    total = _amounts(cpu, mem, "total")
    return node_score(NodeUse(_amounts(cpu, mem, "reserved"), total, total), curve)


def _amounts(cpu: Mapping[str, int], mem: Mapping[str, int], which: str) -> Resources:
    return Resources(MilliCpu(cpu[which]), Bytes(mem[which]))


def on_extenders_scale(case: Case) -> object:
    """What kube-scheduler adds to a node, for a score in percent."""
    found = extender_score(case.input["score100"])
    return {"extender_score": found, "added_to_node": found * case.input["weight"] * 10}


class _Pods:
    """Pods that steps talk about, on a ledger with two nodes."""

    def __init__(self, free: int) -> None:
        self.ledger = Ledger()
        self.ledger.resync([node_facts(free, name=name) for name in ("n1", "n2")], [], [], NOW)
        self.needs: dict[str, int] = {}

    def facts(self, pod: str, node: str | None = None) -> PodFacts:
        return PodFacts(f"uid-{pod}", ObjectName("default", pod), size(self.needs.get(pod, 1)), node=node)

    def filter(self, pod: str) -> str:
        return "ok" if "n1" in self.ledger.filter(self.facts(pod), ["n1"]).fits else "node rejected"

    def bind(self, pod: str, node: str = "n1") -> str:
        return "ok" if self.ledger.reserve(self.facts(pod), node).verdict is FITS else "error"

    @property
    def held(self) -> dict[str, str]:
        """The node on which each pod has reserved."""
        return {claim.pod.name.name: claim.node for claim in self.ledger.claims.values()}


def bind_proposal(case: Case) -> object:
    """Filter and bind in the order of a case; the answer repeats its steps with what really came of them."""
    if "API" in " ".join(case.raw["steps"]):
        return _conflicts()
    pods = _Pods((case.input or {}).get("free_cpu", 1000))
    done = []
    for step in case.raw["steps"]:
        call = _CALL.fullmatch(step)
        if call is None:
            raise ValueError(f"no step: {step}")
        pod, *rest = (part.strip() for part in call["arguments"].split(","))
        if rest and rest[-1].isdigit():
            pods.needs[pod] = int(rest[-1])
        node = next((part for part in rest if part.startswith("n")), "n1")
        outcome = pods.bind(pod, node) if call["verb"] == "bind" else pods.filter(pod)
        done.append(f"{call['verb']}({call['arguments']})={outcome}")
    return {"steps": done, "reserved_on": pods.held.get("A")}


def _conflicts() -> object:
    """A bind that met a conflict: the pod is read, and the reservation is where the pod is."""
    outcomes = []
    for found in ("n1", "n2"):
        pods = _Pods(1000)
        pods.bind("A", "n1")
        pods.ledger.bind_unknown("uid-A", "n1")
        pods.ledger.pod_read("uid-A", pods.facts("A", node=found))
        outcomes.append(pods.held["A"])
    return outcomes


def _bind_expected(case: Case) -> Any:
    if "API" in " ".join(case.raw["steps"]):
        return ["n1", "n2"]
    return {"steps": case.raw["steps"], "reserved_on": (case.expected or {}).get("reserved_on", "n1")}


def tentative_reserve(case: Case) -> object:
    """A reservation until the pod is seen bound, unbound or gone."""
    pods = _Pods(MOST)
    ledger = pods.ledger
    for step in case.raw["steps"]:
        call = _CALL.fullmatch(step)
        if call is None:
            raise ValueError(f"no step: {step}")
        node = call["arguments"].rpartition(",")[2].rpartition("=")[2].strip()
        match call["verb"]:
            case "reserve":
                pods.bind("p", node)
            case "unreserve":
                ledger.bind_refused("uid-p", node)
            case "pod_event":
                ledger.see_pod(pods.facts("p", node=node))
            case "delete":
                ledger.lose_pod("uid-p")
    reserved = sum(ledger.nodes[name].reserved.cpu.value for name in ("n1", "n2"))
    tentative = any(claim.state.value != "bound" for claim in ledger.claims.values())
    return {"reserved": reserved, "tentative": tentative}


def _tentative_expected(case: Case) -> Any:
    reserved = case.expected["reserved"] if "reserved" in case.expected else int(case.expected["reserved_once"])
    return {"reserved": reserved, "tentative": case.expected["tentative"]}


GROUPS: Final[Mapping[str, Check | Answer]] = {
    "node_score": Check(score_of, expected=lambda case: case.expected["score"]),
    "extender_score": on_extenders_scale,
    "extender_bind_proposal": Check(bind_proposal, _bind_expected),
    "tentative_reserve": Check(tentative_reserve, _tentative_expected),
}
