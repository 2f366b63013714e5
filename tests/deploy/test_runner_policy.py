"""Who reaches which port of a runner pod if the policy is enforced."""

from __future__ import annotations

import pytest

from deploy.neonvm.addressing import METRICS_PORT, MIGRATION_PORT, MONITOR_PORT, QMP_PORT, RUNNER_PORT
from deploy.neonvm.objects.pods import runner_pod
from protocol.kubernetes.objects import labels_of
from protocol.units import Bytes, MilliCpu, Resources
from tests.deploy.manifests import documents
from tests.deploy.policies.reach import Peer, chosen, reaches, shipped
from tests.neonvm.sample_objects import virtual_machine

(POLICY,) = documents("deploy/kubernetes/neonvm-policy.yaml")
SIZE = Resources(MilliCpu(1000), Bytes(2**30))
RUNNER = Peer("default", labels_of(runner_pod(virtual_machine(), "db-x", SIZE)))
CONTROLLER = shipped("Deployment", "neonvm-controller")
ANOTHER = Peer("default", {"app": "client"})
PEERS = {
    "controller": CONTROLLER,
    "node agent": shipped("DaemonSet", "autoscaling-agent"),
    "runner": RUNNER,
    "imposter": Peer("default", CONTROLLER.labels),
    "another pod": ANOTHER,
}
GUARDED = {
    QMP_PORT: {"controller"},
    RUNNER_PORT: {"controller", "node agent"},
    MIGRATION_PORT: {"runner"},
    MONITOR_PORT: {"node agent"},
}


@pytest.mark.parametrize("port", GUARDED)
def test_runner_ports_admit_only_needed_callers(port: int) -> None:
    assert {name for name, peer in PEERS.items() if reaches([POLICY], peer, RUNNER, port)} == GUARDED[port]


def test_every_other_port_is_for_everybody() -> None:
    closed = {port for port in range(1, 65536) if not reaches([POLICY], ANOTHER, RUNNER, port)}
    assert closed == set(GUARDED)
    assert all(reaches([POLICY], ANOTHER, RUNNER, port, "UDP") for port in (1, METRICS_PORT, 65535))


def test_it_is_about_runner_pods() -> None:
    assert chosen(POLICY["spec"]["podSelector"], RUNNER.labels)
    assert not chosen(POLICY["spec"]["podSelector"], ANOTHER.labels)
    assert "namespace" not in POLICY["metadata"]
