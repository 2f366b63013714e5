"""The values in ``docs/from-neon.md`` install each part once, the original's or ours (B.11)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests import plain_yaml
from tests.deploy.manifests import ROOT
from tests.kubernetes.chart.test_chart import named, objects, workload

pytestmark = pytest.mark.kubernetes

_, OUR_SCHEDULER, OUR_AGENTS = (
    plain_yaml.load(block)
    for block in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/from-neon.md").read_text(), re.DOTALL)
)
PARTS = {"autoscaling-scheduler", "autoscaling-agent", "neonvm-controller"}
WITH_AGENTS = {**OUR_SCHEDULER, "agent": {"node": {"enabled": True}}}
ON_SOME_NODES = {"daemonSets": {"nodeSelector": {"example.com/vms": "true"}}}


def workloads(values: dict[str, Any]) -> set[str]:
    """The parts of the system that are installed with these values."""
    found = {name for kind, name in map(named, objects(values)) if kind in {"Deployment", "DaemonSet"}}
    return found & PARTS


@pytest.mark.parametrize(
    ("values", "ours"),
    [
        (OUR_SCHEDULER, {"autoscaling-scheduler"}),
        (WITH_AGENTS, {"autoscaling-scheduler", "autoscaling-agent"}),
        ({**WITH_AGENTS, "neonvm": {"enabled": True}}, PARTS),
        (OUR_AGENTS, {"autoscaling-agent"}),
    ],
    ids=["our scheduler", "and our agents", "and our controller", "our agents alone"],
)
def test_each_step_installs_what_it_says(values: dict[str, Any], ours: set[str]) -> None:
    assert workloads(values) == ours


def test_manifests_connect_to_the_originals_programs() -> None:
    pod = workload(OUR_SCHEDULER, "autoscaling-scheduler")
    assert pod["metadata"]["labels"]["name"] == "autoscale-scheduler"
    (container,) = workload(OUR_AGENTS, "autoscaling-agent")["spec"]["containers"]
    told = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert len({each["name"] for each in container["env"]}) == len(container["env"]), "a patch would lose one of two"
    assert told["SCHEDULER_URL"] == "http://original-scheduler.kube-system.svc:10299"
    assert (told["SCHEDULER_PROTOCOL"], told["SCHEDULER_TOKEN_FILE"]) == ("v5.0", "")


def test_permit_policies_are_off_beside_original_scheduler() -> None:
    policies = {name for kind, name in map(named, objects(OUR_AGENTS)) if kind == "ValidatingAdmissionPolicy"}
    permits = {"autoscaling-permits", "autoscaling-permit-writers"}
    assert ("autoscaling-agents" in policies, policies & permits) == (True, set())


def test_programs_on_nodes_run_where_vms_may() -> None:
    for name in ("autoscaling-agent", "neonvm-devices", "neonvm-network"):
        assert workload(ON_SOME_NODES, name)["spec"]["nodeSelector"]["example.com/vms"] == "true"
