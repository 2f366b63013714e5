"""Who reaches which port of a runner pod where the policy is enforced."""

from __future__ import annotations

import pytest

from deploy.neonvm.addressing import METRICS_PORT, MIGRATION_PORT, QMP_PORT, RUNNER_PORT
from deploy.neonvm.objects.pods import runner_pod
from protocol.kubernetes.objects import labels_of
from protocol.units import Bytes, MilliCpu, Resources
from tests.deploy.manifests import Document, documents, one
from tests.neonvm.sample_objects import virtual_machine

(POLICY,) = documents("deploy/kubernetes/neonvm-policy.yaml")
RUNNER = ("default", labels_of(runner_pod(virtual_machine(), "db-x", Resources(MilliCpu(1000), Bytes(2**30)), False)))


def shipped(kind: str, name: str) -> tuple[str, dict[str, str]]:
    """Namespace and labels of the pods of a workload that we ship."""
    found = one(kind, name)
    return found["metadata"]["namespace"], found["spec"]["template"]["metadata"]["labels"]


PEERS = {
    "controller": shipped("Deployment", "neonvm-controller"),
    "node agent": shipped("DaemonSet", "autoscaling-agent"),
    "runner": RUNNER,
    "imposter": ("default", shipped("Deployment", "neonvm-controller")[1]),
    "another pod": ("default", {"app": "client"}),
}
GUARDED = {
    QMP_PORT: {"controller"},
    RUNNER_PORT: {"controller", "node agent"},
    MIGRATION_PORT: {"runner"},
}


def chosen(selector: Document, labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(each["key"] in labels for each in selector.get("matchExpressions", ()))


def is_from(peer: Document, namespace: str, labels: dict[str, str]) -> bool:
    spaces = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": "default"}})
    return chosen(spaces, {"kubernetes.io/metadata.name": namespace}) and chosen(peer["podSelector"], labels)


def reaches(name: str, port: int, protocol: str = "TCP") -> bool:
    return any(
        ("from" not in rule or any(is_from(peer, *PEERS[name]) for peer in rule["from"]))
        and any(
            each["protocol"] == protocol and each["port"] <= port <= each.get("endPort", each["port"])
            for each in rule["ports"]
        )
        for rule in POLICY["spec"]["ingress"]
    )


@pytest.mark.parametrize("port", GUARDED)
def test_a_port_of_the_runner_is_for_those_who_need_it(port: int) -> None:
    assert {name for name in PEERS if reaches(name, port)} == GUARDED[port]


def test_every_other_port_is_for_everybody() -> None:
    closed = {port for port in range(1, 65536) if not reaches("another pod", port)}
    assert closed == set(GUARDED)
    assert all(reaches("another pod", port, "UDP") for port in (1, METRICS_PORT, 65535))


def test_it_is_about_runner_pods() -> None:
    assert chosen(POLICY["spec"]["podSelector"], RUNNER[1])
    assert not chosen(POLICY["spec"]["podSelector"], PEERS["another pod"][1])
    assert "namespace" not in POLICY["metadata"]
