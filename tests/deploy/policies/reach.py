"""Computes from the manifests who reaches which port if NetworkPolicies are enforced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.deploy.manifests import Document, one


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod: its namespace and its labels."""

    namespace: str
    labels: dict[str, str]


def shipped(kind: str, name: str) -> Peer:
    """The pods of a workload that we ship."""
    found = one(kind, name)
    return Peer(found["metadata"]["namespace"], found["spec"]["template"]["metadata"]["labels"])


def reaches(policies: Sequence[Document], peer: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """True if ``peer`` reaches the port: no policy selects ``target``, or one that does allows the peer."""
    about = [each for each in policies if covers(each, target)]
    return not about or any(_admits(each, peer, port, protocol, target.namespace) for each in about)


def covers(policy: Document, target: Peer) -> bool:
    """True if the policy is about the pod. One without a namespace is applied where its pods are."""
    namespace = policy["metadata"].get("namespace", target.namespace)
    return bool(namespace == target.namespace and chosen(policy["spec"]["podSelector"], target.labels))


def chosen(selector: Document, labels: dict[str, str]) -> bool:
    """True if a label selector chooses what has ``labels``. Of expressions only ``Exists`` is used."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(each["key"] in labels for each in selector.get("matchExpressions", ()))


def _admits(policy: Document, peer: Peer, port: int, protocol: str, home: str) -> bool:
    return any(
        ("from" not in rule or any(_is_from(each, peer, home) for each in rule["from"]))
        and any(
            each["protocol"] == protocol and each["port"] <= port <= each.get("endPort", each["port"])
            for each in rule["ports"]
        )
        for rule in policy["spec"]["ingress"]
    )


def _is_from(source: Document, peer: Peer, home: str) -> bool:
    spaces = source.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": home}})
    return chosen(spaces, {"kubernetes.io/metadata.name": peer.namespace}) and chosen(
        source.get("podSelector", {}), peer.labels
    )
