"""The shipped examples fit each other: each VM has its bounds in whole compute units of each shipped setting.

Their pods request what the VMs start with, so that no pod is the first to be evicted, and requests can follow permits.
"""

from __future__ import annotations

import re

import pytest

from deploy.local.cluster.settings import scheduler_settings
from protocol.messages import ObjectName
from protocol.units import ComputeUnit, Resources
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine
from scheduler_plugin.cluster.problems import unit_mismatch
from scheduler_plugin.settings.document import CONFIG_KEY, parse_settings
from scripts.autoscale.demonstration.vm_database import postgres_vm
from tests import plain_yaml
from tests.deploy.manifests import ROOT, documents, one

SETTINGS = {
    "deploy/scheduler-deploy.yaml": one("ConfigMap", "autoscaling-scheduler-config")["data"][CONFIG_KEY],
    "the local cluster": scheduler_settings(),
}


def vm(obj: dict[str, object]) -> VirtualMachine:
    metadata = obj["metadata"]
    assert isinstance(metadata, dict)
    return parse_virtual_machine({**obj, "metadata": {"namespace": "default", **metadata}})


IN_GROUPS = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/groups.md").read_text(), re.DOTALL)
(GROUP,) = (each for each in map(plain_yaml.load, IN_GROUPS) if each.get("kind") == "VirtualMachineGroup")
OBJECTS = {
    "vm-deploy.yaml": documents("vm-deploy.yaml")[0],
    "the demonstration": postgres_vm(ObjectName("default", "db"), 4, 8),
    "docs/groups.md": {**GROUP["spec"]["template"], "metadata": {"name": "shop"}},
}
VMS = {name: vm(obj) for name, obj in OBJECTS.items()}


def unit_of(where: str) -> ComputeUnit:
    return parse_settings(SETTINGS[where]).policy_of("any").compute_unit


@pytest.mark.parametrize("example", VMS)
@pytest.mark.parametrize("where", SETTINGS)
def test_every_vm_fits_every_compute_unit(example: str, where: str) -> None:
    found, unit = VMS[example], unit_of(where)
    assert unit_mismatch(found.bounds, found.slot_size, unit) is None
    for bound in (found.bounds.min, found.bounds.max):
        assert bound.cpu.value / unit.cpu.value == bound.mem.value / unit.mem.value


@pytest.mark.parametrize("example", VMS)
def test_pod_requests_start_size_and_may_follow(example: str) -> None:
    resources = OBJECTS[example]["spec"]["podResources"]
    assert resources.keys() == {"requests"}, "with limits of CPU or memory requests cannot follow permits"
    wanted = resources["requests"]
    assert Resources.parse(wanted["cpu"], wanted["memory"]) == VMS[example].use
