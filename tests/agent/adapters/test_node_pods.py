from __future__ import annotations

import pytest

from agent.adapters.node_pods import assignment_of, database_in
from protocol.names import LABEL_VM_NAME
from tests.pod_databases import pod_database


@pytest.mark.parametrize(
    ("address", "is_asked"),
    [("10.0.0.7", True), ("fd00::7", True), ("", False), ("metadata.internal", False), ("10.0.0.7:80/x?", False)],
)
def test_assigns_pods_with_ip_address(address: str, is_asked: bool) -> None:
    metadata = {"namespace": "shop", "name": "db-1", "labels": {LABEL_VM_NAME: "db"}}
    found = assignment_of({"metadata": metadata, "status": {"podIP": address}})
    assert (found is not None) is is_asked


def test_leaves_a_pod_that_is_being_deleted() -> None:
    pod = pod_database()
    assert database_in(pod) is not None
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert database_in(pod) is None
