"""Revisions in lists and watches: what goes together, what is too old or yet to come, and what a page says."""

from __future__ import annotations

import pytest

from tests.conformance.cluster import Cluster, Json, refused

NEVER = "999999999999"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"resourceVersionMatch": "Exact"}, "resourceVersionMatch"),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, "resourceVersionMatch"),
        ({"resourceVersionMatch": "Maybe", "resourceVersion": "1"}, "resourceVersionMatch"),
        ({"sendInitialEvents": "true"}, "sendInitialEvents"),
        ({"watch": "true", "sendInitialEvents": "true"}, "resourceVersionMatch"),
        ({"watch": "true", "resourceVersionMatch": "NotOlderThan"}, "resourceVersionMatch"),
    ],
)
def test_conflicting_options_name_the_field(cluster: Cluster, query: Json, field: str) -> None:
    response = cluster.http.get(cluster.path("configmaps"), params={**query, "timeoutSeconds": "1"})
    assert refused(response) == (422, "Invalid")
    assert field in [cause["field"] for cause in response.json()["details"]["causes"]]


def test_list_at_future_revision_says_retry(cluster: Cluster) -> None:
    path = cluster.path("configmaps")
    response = cluster.http.get(path, params={"resourceVersion": NEVER, "resourceVersionMatch": "NotOlderThan"})
    assert refused(response) == (504, "Timeout")
    details = response.json()["details"]
    assert details["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert details["retryAfterSeconds"] == 1


def test_page_counts_remaining_without_selector(cluster: Cluster) -> None:
    for name in "abc":
        cluster.create(cluster.path("leases", "", "coordination.k8s.io/v1"), {"metadata": {"name": name}})
    path = cluster.path("leases", "", "coordination.k8s.io/v1")
    plain, selected = (cluster.get(path, limit=1, **more)["metadata"] for more in ({}, {"labelSelector": "!x"}))
    assert (plain["remainingItemCount"], "remainingItemCount" in selected) == (2, False)
    assert all((plain["continue"], selected["continue"]))


def test_get_accepts_any_revision(cluster: Cluster) -> None:
    made, path = cluster.config_map("a", k="v"), cluster.path("configmaps", "a")
    # What is read so may be older than the write by a moment.
    cluster.until(lambda: cluster.http.get(path, params={"resourceVersion": "0"}).is_success)
    assert cluster.get(path, resourceVersion="0")["metadata"]["uid"] == made["metadata"]["uid"]


def test_list_revision_is_below_next_write(cluster: Cluster) -> None:
    newest = [cluster.config_map(name)["metadata"]["resourceVersion"] for name in "ab"][-1]
    reached = cluster.get(cluster.path("configmaps"), limit=1)["metadata"]["resourceVersion"]
    written = cluster.config_map("c")["metadata"]["resourceVersion"]
    assert int(newest) <= int(reached) < int(written)
