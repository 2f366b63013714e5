"""Sizes that no machine has are refused where VMs are created and edited."""

from __future__ import annotations

from typing import Any, Final

import pytest

from deploy.local.apiserver.schema.structural import broken_rules
from tests.deploy.manifests import documents

(DEFINITION,) = (
    each for each in documents("deploy/neonvm.yaml") if each["metadata"]["name"] == "virtualmachines.vm.neon.tech"
)
SPEC: Final = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
CPUS: Final = SPEC["properties"]["guest"]["properties"]["cpus"]


@pytest.mark.parametrize(
    ("size", "held"),
    [
        ("8Mi", True),
        ("1Gi", True),
        ("64Gi", True),
        (1073741824, True),
        ("65Gi", False),
        ("0", False),
        (0, False),
        ("100Mi", False),
        ("8388607", False),
        ("1m", False),
        ("1e40", False),
        ("9E", False),
    ],
)
def test_slot_is_multiple_of_8mi(size: object, held: bool) -> None:
    assert (list(broken_rules({"guest": {"memorySlotSize": size}}, SPEC, None)) == []) is held


def test_a_slot_may_be_left_out() -> None:
    assert list(broken_rules({"guest": {}}, SPEC, None)) == []


@pytest.mark.parametrize(
    ("most", "held"), [(1, True), ("4096", True), ("4096001m", False), (4097, False), ("1E", False), ("1e40", False)]
)
def test_a_vm_has_at_most_4096_cpus(most: Any, held: bool) -> None:
    assert (list(broken_rules({"min": 1, "use": 1, "max": most}, CPUS, None)) == []) is held
