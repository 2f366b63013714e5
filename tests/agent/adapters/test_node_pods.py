from __future__ import annotations

import pytest

from agent.adapters.node_pods import assignment_of
from protocol.names import LABEL_VM_NAME


@pytest.mark.parametrize(
    ("address", "is_asked"),
    [("10.0.0.7", True), ("fd00::7", True), ("", False), ("metadata.internal", False), ("10.0.0.7:80/x?", False)],
)
def test_assigns_pods_with_ip_address(address: str, is_asked: bool) -> None:
    metadata = {"namespace": "shop", "name": "db-1", "labels": {LABEL_VM_NAME: "db"}}
    found = assignment_of({"metadata": metadata, "status": {"podIP": address}})
    assert (found is not None) is is_asked
