"""The family neon: scores, bind as Reserve, and what becomes of reservations, against the real ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from protocol.messages import ObjectName
from protocol.ranking.config import ScoreCurve
from protocol.ranking.node_score import extender_score, fraction, percent
from protocol.units import Instant
from scheduler_plugin.ledger.events import BindEnded, BindRequested, Listed, PodGone, PodRead, PodSeen, WriteOutcome
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.placement.verdict import FITS
from tests.vectors.case import Case
from tests.vectors.ledger_fixture import MOST, node_facts, size
from tests.vectors.reading import MissingError
from tests.vectors.registry import Answer, Check, Declined, chosen

NOW: Final = Instant(0)
_CALL: Final = re.compile(r"(?P<verb>\w+)\((?P<arguments>[^)]*)\)(?:=(?P<outcome>.*))?")
_ANSWER: Final = re.compile(r"bind\((?P<arguments>[^)]*)\): API (?P<what>\w+), (?P<branches>.*)")
_BRANCH: Final = re.compile(r"(?P<left>[\w.]*)==(?P<node>\w+) -> (?:ok|error)(?P<moved>, move the reservation to it)?")


def score_of(case: Case) -> object:
    """The score of a node with the pod on it, 0..100 (S2.8b)."""
    given = case.input
    cpu, mem = given["cpu_with_pod"], given["mem_with_pod"]
    if any(each["total"] != each["max_seen"] for each in (cpu, mem)):
        raise Declined("a small node is worth as much as a large one: price breaks ties, not size (S2.8b)")
    curve = ScoreCurve(empty=given["min_usage_score"], full=given["max_usage_score"], peak=given["peak"])
    of_cpu, of_mem = (fraction(each["reserved"], each["total"], each["total"], curve) for each in (cpu, mem))
    facts = {
        "score": percent(of_cpu, of_mem),
        "cpu_fraction": of_cpu,
        "mem_fraction": of_mem,
        "over_budget": any(each["reserved"] > each["total"] for each in (cpu, mem)),
    }
    return chosen(case, facts, ("score", "over_budget"), ("cpu_fraction", "mem_fraction"))


def on_extenders_scale(case: Case) -> object:
    """kube-scheduler's added score of a node, for a score in percent."""
    found = extender_score(case.input["score100"])
    return {"extender_score": found, "added_to_node": found * case.input["weight"] * 10}


class _Pods:
    """Pods that steps talk about, on a ledger with two nodes."""

    def __init__(self, free: int) -> None:
        self.ledger = Ledger()
        self.ledger.apply(Listed([node_facts(free, name=name) for name in ("n1", "n2")], [], []), NOW)
        self.needs: dict[str, int] = {}

    def facts(self, pod: str, node: str | None = None) -> PodFacts:
        return PodFacts(f"uid-{pod}", ObjectName("default", pod), size(self.needs.get(pod, 1)), node=node)

    def filter(self, pod: str) -> str:
        return "ok" if "n1" in self.ledger.filter(self.facts(pod), ["n1"]).fits else "node rejected"

    def bind(self, pod: str, node: str = "n1") -> str:
        return "ok" if self.ledger.apply(BindRequested(self.facts(pod), node), NOW).verdict is FITS else "error"

    @property
    def held(self) -> dict[str, str]:
        """The node on which each pod has reserved."""
        return {claim.pod.name.name: claim.node for claim in self.ledger.claims.values()}


def bind_proposal(case: Case) -> object:
    """Filter and bind in the order of a case; the answer repeats its steps with what really came of them."""
    pods, node_of = _Pods((case.input or {}).get("free_cpu", 1000)), ""
    done = []
    for step in case.more["steps"]:
        if answered := _ANSWER.fullmatch(step):
            done.append(_answered_by_the_api(answered))
            continue
        pod, needs, node_of = _arguments(step)
        if needs is not None:
            pods.needs[pod] = needs
        call = _CALL.fullmatch(step)
        outcome = pods.bind(pod, node_of) if call and call["verb"] == "bind" else pods.filter(pod)
        done.append(f"{step.partition('=')[0]}={outcome}")
    held = set(pods.held.values())
    return {"steps": done, **({"reserved_on": held.pop() if len(held) == 1 else None} if case.expected else {})}


def _arguments(step: str) -> tuple[str, int | None, str]:
    """The pod, its needs where they are given, and the node of ``filter(A,1000)=...`` or ``bind(A,uid1,n1)=...``."""
    call = _CALL.fullmatch(step)
    if call is None or call["verb"] not in ("filter", "bind"):
        raise ValueError(f"no step: {step}")
    pod, *rest = (part.strip() for part in call["arguments"].split(","))
    needs = next((int(part) for part in rest if part.isdigit()), None)
    return pod, needs, next((part for part in rest if part.startswith("n")), "n1")


def _answered_by_the_api(step: re.Match[str]) -> str:
    """A bind that the API refused because the pod has a node: the pod is read, and the reservation is where it is."""
    pod, _, node = _arguments(f"bind({step['arguments']})")
    outcomes = []
    for branch in step["branches"].split(";"):
        found = _BRANCH.fullmatch(branch.strip())
        if found is None:
            raise ValueError(f"no branch: {branch}")
        pods, where = _Pods(1000), node if found["node"] == node else "n2" if node == "n1" else "n1"
        pods.bind(pod, node)
        pods.ledger.apply(BindEnded(f"uid-{pod}", node, WriteOutcome.UNKNOWN), NOW)
        pods.ledger.apply(PodRead(f"uid-{pod}", pods.facts(pod, node=where)), NOW)
        if pods.held[pod] != where:
            outcomes.append(f"the reservation stayed on {pods.held[pod]}")
            continue
        moved = ", move the reservation to it" if found["moved"] else ""
        outcomes.append(f"{found['left']}=={found['node']} -> {'ok' if where == node else 'error'}{moved}")
    return f"bind({step['arguments']}): API {step['what']}, {'; '.join(outcomes)}"


def _bind_expected(case: Case) -> Any:
    return {"steps": case.more["steps"], **(case.expected or {})}


def tentative_reserve(case: Case) -> object:
    """A reservation until the pod is seen bound, unbound or gone."""
    pods = _Pods(MOST)
    ledger = pods.ledger
    for step in case.more["steps"]:
        call = _CALL.fullmatch(step)
        if call is None:
            raise ValueError(f"no step: {step}")
        pod, *rest = (part.rpartition("=")[2].strip() for part in call["arguments"].split(","))
        node = rest[0] if rest else ""
        match call["verb"]:
            case "reserve":
                pods.bind(pod, node)
            case "unreserve":
                ledger.apply(BindEnded(f"uid-{pod}", node, WriteOutcome.REFUSED), NOW)
            case "pod_event":
                ledger.apply(PodSeen(pods.facts(pod, node=node)), NOW)
            case "delete":
                ledger.apply(PodGone(f"uid-{pod}"), NOW)
            case verb:
                raise ValueError(f"no step: {verb}")
    reserved = sum(ledger.nodes[name].reserved.cpu.value for name in ("n1", "n2"))
    facts = {
        "reserved": reserved,
        "reserved_once": reserved == 1,
        "reserved_on": next(iter(pods.held.values()), None),
        "tentative": any(claim.state.value != "bound" for claim in ledger.claims.values()),
    }
    if case.expected.keys().isdisjoint({"reserved", "reserved_once"}):
        raise MissingError("expected.reserved")
    return chosen(case, facts, ("tentative",))


GROUPS: Final[Mapping[str, Check | Answer]] = {
    "node_score": score_of,
    "extender_score": on_extenders_scale,
    "extender_bind_proposal": Check(bind_proposal, _bind_expected, needs=("steps",)),
    "tentative_reserve": Check(tentative_reserve, needs=("steps", "expected")),
}
