"""kube-scheduler's rules for one pod and one node, written naively over the API's JSON: slow and obvious."""

from __future__ import annotations

from collections import Counter
from typing import Any

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def requirement_holds(requirement: Json, labels: dict[str, str]) -> bool:  # noqa: PLR0911 - one line for each operator
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values", [])
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    if operator == "NotIn":
        return key not in labels or labels[key] not in values
    if key not in labels:
        return False
    if operator == "In":
        return labels[key] in values
    try:
        have, limit = int(labels[key]), int(values[0])
    except ValueError:
        return False
    return have > limit if operator == "Gt" else have < limit


def selector_holds(selector: Json | None, labels: dict[str, str]) -> bool:
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(requirement_holds(each, labels) for each in selector.get("matchExpressions", []))


def toleration_covers(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint["key"]
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def tolerated(spec: Json, node: Json) -> bool:
    taints = [taint for taint in node["spec"].get("taints", []) if taint["effect"] != "PreferNoSchedule"]
    return all(any(toleration_covers(each, taint) for each in spec.get("tolerations", [])) for taint in taints)


def term_holds(term: Json, node: Json) -> bool:
    labels, fields = term.get("matchExpressions", []), term.get("matchFields", [])
    if not labels and not fields:
        return False
    meta = node["metadata"]
    return all(requirement_holds(each, meta["labels"]) for each in labels) and all(
        requirement_holds(each, {"metadata.name": meta["name"]}) for each in fields
    )


def affine(spec: Json, node: Json) -> bool:
    for key, value in spec.get("nodeSelector", {}).items():
        if node["metadata"]["labels"].get(key) != value:
            return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    return required is None or any(term_holds(term, node) for term in required["nodeSelectorTerms"])


def about(term: Json, owner: Json, pod: Json, namespaces: dict[str, dict[str, str]]) -> bool:
    selector = term.get("labelSelector")
    if not selector_holds(selector, pod["metadata"]["labels"]):
        return False
    for key in term.get("matchLabelKeys", []):
        labels = owner["metadata"]["labels"]
        if key in labels and pod["metadata"]["labels"].get(key) != labels[key]:
            return False
    for key in term.get("mismatchLabelKeys", []):
        labels = owner["metadata"]["labels"]
        if key in labels and pod["metadata"]["labels"].get(key) == labels[key]:
            return False
    listed, chosen = term.get("namespaces"), term.get("namespaceSelector")
    if not listed and chosen is None:
        return bool(pod["metadata"]["namespace"] == owner["metadata"]["namespace"])
    namespace: str = pod["metadata"]["namespace"]
    return bool(namespace in (listed or []) or selector_holds(chosen, namespaces[namespace]))


def together(key: str, one: Json, other: Json) -> bool:
    labels = one["metadata"]["labels"]
    return bool(key in labels and labels[key] == other["metadata"]["labels"].get(key))


class Cluster:
    """Nodes, placed pods and namespaces; ``fits`` answers whether a pod fits a node."""

    def __init__(self, nodes: list[Json], pods: list[Json], namespaces: dict[str, dict[str, str]]) -> None:
        self.nodes = {node["metadata"]["name"]: node for node in nodes}
        self.pods, self.namespaces = pods, namespaces

    def node_of(self, pod: Json) -> Json:
        found: Json = self.nodes[pod["spec"]["nodeName"]]
        return found

    def fits(self, pod: Json, node: Json) -> bool:
        conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
        ready = conditions.get("Ready", "True") == "True" and conditions.get("MemoryPressure") != "True"
        spec = pod["spec"]
        return (
            ready
            and tolerated(spec, node)
            and affine(spec, node)
            and self.attracted(pod, node)
            and not self.repelled(pod, node)
            and self.even(pod, node)
            and not self.port_clash(pod, node)
            and self.has_left(pod, node)
        )

    def has_left(self, pod: Json, node: Json) -> bool:
        there = [each for each in self.pods if self.node_of(each) is node]
        has = node["status"].get("allocatable", {})
        if "pods" in has and len(there) + 1 > has["pods"]:
            return False
        asked = requested(pod)
        return all(asked[name] + sum(requested(each)[name] for each in there) <= has.get(name, 0) for name in asked)

    def attracted(self, pod: Json, node: Json) -> bool:
        terms = pod["spec"].get("affinity", {}).get("podAffinity", {}).get(REQUIRED, [])
        matching = [each for each in self.pods if all(about(term, pod, each, self.namespaces) for term in terms)]
        keys = [term["topologyKey"] for term in terms]
        nowhere = not any(key in self.node_of(each)["metadata"]["labels"] for each in matching for key in keys)
        if terms and nowhere and all(about(term, pod, pod, self.namespaces) for term in terms):
            return all(key in node["metadata"]["labels"] for key in keys)
        return all(any(together(key, node, self.node_of(each)) for each in matching) for key in keys)

    def repelled(self, pod: Json, node: Json) -> bool:
        for each in self.pods:
            for owner, other in ((pod, each), (each, pod)):
                for term in owner["spec"].get("affinity", {}).get("podAntiAffinity", {}).get(REQUIRED, []):
                    if about(term, owner, other, self.namespaces) and together(
                        term["topologyKey"], self.node_of(each), node
                    ):
                        return True
        return False

    def even(self, pod: Json, node: Json) -> bool:
        hard = [
            each
            for each in pod["spec"].get("topologySpreadConstraints", [])
            if each["whenUnsatisfiable"] == "DoNotSchedule"
        ]
        keys = [each["topologyKey"] for each in hard]
        for spread in hard:
            key, labels = spread["topologyKey"], pod["metadata"]["labels"]
            if key not in node["metadata"]["labels"]:
                return False
            counting = [
                each
                for each in self.nodes.values()
                if all(one in each["metadata"]["labels"] for one in keys)
                and (spread.get("nodeAffinityPolicy") == "Ignore" or affine(pod["spec"], each))
                and (spread.get("nodeTaintsPolicy") != "Honor" or tolerated(pod["spec"], each))
            ]
            domains = {each["metadata"]["labels"][key]: 0 for each in counting}
            shared = [one for one in spread.get("matchLabelKeys", []) if one in labels]
            for each in self.pods:
                theirs = each["metadata"]["labels"]
                if (
                    self.node_of(each) in counting
                    and each["metadata"]["namespace"] == pod["metadata"]["namespace"]
                    and "deletionTimestamp" not in each["metadata"]
                    and selector_holds(spread.get("labelSelector"), theirs)
                    and all(theirs.get(one) == labels[one] for one in shared)
                ):
                    domains[self.node_of(each)["metadata"]["labels"][key]] += 1
            least = min(domains.values(), default=0) if len(domains) >= spread.get("minDomains", 1) else 0
            adds = selector_holds(spread.get("labelSelector"), labels)
            if domains.get(node["metadata"]["labels"][key], 0) + adds - least > spread["maxSkew"]:
                return False
        return True

    def port_clash(self, pod: Json, node: Json) -> bool:
        for each in self.pods:
            if self.node_of(each) is not node:
                continue
            for one in ports(pod):
                for other in ports(each):
                    same = one["hostPort"] == other["hostPort"] and one["protocol"] == other["protocol"]
                    if same and (one["hostIP"] == other["hostIP"] or "0.0.0.0" in {one["hostIP"], other["hostIP"]}):
                        return True
        return False


def requested(pod: Json) -> Counter[str]:
    """The requests of the pod, other than CPU and memory, while it starts or runs."""
    most: Counter[str] = Counter()
    inits = pod["spec"].get("initContainers", [])
    for number, init in enumerate(inits):
        sidecars = [each for each in inits[:number] if each.get("restartPolicy") == "Always"]
        most |= sum((others(each) for each in (*sidecars, init)), Counter())
    sidecars = [each for each in inits if each.get("restartPolicy") == "Always"]
    return most | sum((others(each) for each in (*pod["spec"]["containers"], *sidecars)), Counter())


def others(container: Json) -> Counter[str]:
    requests = container.get("resources", {}).get("requests", {})
    return Counter({name: int(amount) for name, amount in requests.items() if name not in {"cpu", "memory"}})


def ports(pod: Json) -> list[Json]:
    return [port for container in pod["spec"]["containers"] for port in container["ports"]]
