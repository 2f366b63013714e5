"""Every port of a program is in one policy, its callers come in, and strangers only where they may.

No network that the tests have enforces NetworkPolicy (decision 40): what is held here is what the manifests say.
"""

from __future__ import annotations

import pytest

from tests.deploy.manifests import Document, documents
from tests.deploy.policies.reach import Peer, covers, reaches, shipped

POLICIES = [each for each in documents() if each["kind"] == "NetworkPolicy" and "namespace" in each["metadata"]]
WORKLOADS = [each for each in documents() if each["kind"] in {"Deployment", "DaemonSet"}]
APART = [each for each in WORKLOADS if not each["spec"]["template"]["spec"].get("hostNetwork")]
"""Those whose pods have a network of their own, which a policy can be about."""
KUBE_SYSTEM = "kube-system"

PEERS = {
    "agent of a node": shipped("DaemonSet", "autoscaling-agent"),
    "agent in a VM's pod": Peer("tenant", {"vm.neon.tech/name": "db"}),
    "scheduler": shipped("Deployment", "autoscaling-scheduler"),
    "groups": shipped("Deployment", "autoscaling-groups"),
    "helm test": Peer(KUBE_SYSTEM, {"app.kubernetes.io/name": "autoscaling-answers"}),
    "Cluster Autoscaler": Peer(KUBE_SYSTEM, {"app": "cluster-autoscaler"}),
    "monitoring": Peer("monitoring", {"app": "prometheus"}),
    "a tenant's pod": Peer("tenant", {"app": "client"}),
    "a pod that calls itself an agent": Peer("tenant", {"app.kubernetes.io/name": "autoscaling-agent"}),
    "a pod that calls itself the scheduler": Peer("tenant", {"app.kubernetes.io/name": "autoscaling-scheduler"}),
}
EVERYBODY = set(PEERS)
OF_KUBE_SYSTEM = {name for name, peer in PEERS.items() if peer.namespace == KUBE_SYSTEM}
CALLERS = {
    ("autoscaling-scheduler", 10299): {"agent of a node", "agent in a VM's pod", "helm test"},
    ("autoscaling-scheduler", 10298): {"scheduler", "helm test"},
    ("autoscaling-scheduler", 10297): EVERYBODY,
    ("autoscaling-scheduler", 10259): set[str](),
    ("autoscaling-agent", 9101): EVERYBODY,
    ("autoscaling-groups", 10294): EVERYBODY,
    ("autoscaling-dashboard", 10290): EVERYBODY,
    ("autoscaling-dashboard", 10289): EVERYBODY,
    ("autoscaling-injector", 10293): EVERYBODY,
    ("autoscaling-injector", 10292): EVERYBODY,
    ("autoscaling-expander", 10296): OF_KUBE_SYSTEM,
    ("autoscaling-expander", 10295): EVERYBODY,
    ("neonvm-controller", 10293): EVERYBODY,
    ("neonvm-devices", 10291): EVERYBODY,
}


def ports(workload: Document) -> set[int]:
    containers = workload["spec"]["template"]["spec"]["containers"]
    return {port["containerPort"] for each in containers for port in each.get("ports", ())}


@pytest.mark.parametrize("workload", APART, ids=lambda each: each["metadata"]["name"])
def test_each_program_has_one_network_policy(workload: Document) -> None:
    name = workload["metadata"]["name"]
    pod = shipped(workload["kind"], name)
    assert [each["metadata"]["name"] for each in POLICIES if covers(each, pod)] == [name]
    assert ports(workload) <= {port for program, port in CALLERS if program == name}


@pytest.mark.parametrize(("program", "port"), CALLERS)
def test_a_port_is_reached_by_its_callers(program: str, port: int) -> None:
    (kind,) = (each["kind"] for each in WORKLOADS if each["metadata"]["name"] == program)
    target = shipped(kind, program)
    assert {name for name, peer in PEERS.items() if reaches(POLICIES, peer, target, port)} == CALLERS[program, port]


def test_host_network_programs_listen_on_loopback() -> None:
    for workload in (each for each in WORKLOADS if each not in APART):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        listens = [each for each in container["args"] if each.startswith("--listen")]
        assert ["=127.0.0.1:" in each for each in listens] == [True]


def test_the_device_plugin_speaks_to_no_network() -> None:
    (policy,) = (each for each in POLICIES if each["metadata"]["name"] == "neonvm-devices")
    assert (policy["spec"]["policyTypes"], "egress" in policy["spec"]) == (["Ingress", "Egress"], False)
