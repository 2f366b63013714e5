"""Watches: nothing is missed between a list and what follows it."""

from __future__ import annotations

import json

from tests.conformance.cluster import Cluster, seen

MINE = "metadata.name!=kube-root-ca.crt"


def test_watch_continues_after_list(cluster: Cluster) -> None:
    path = cluster.path("configmaps")
    cluster.config_map("before")
    start = cluster.get(path)["metadata"]["resourceVersion"]
    made = cluster.config_map("a", k="v")
    changed = cluster.patch(f"{path}/a", {"data": {"k": "w"}}).json()
    with cluster.watch(path, resourceVersion=start, fieldSelector=MINE) as events:
        first, second = next(events), next(events)
        cluster.http.delete(f"{path}/a")
        third = next(events)
    assert [(one["type"], one["object"]) for one in (first, second)] == [("ADDED", made), ("MODIFIED", changed)]
    assert (third["type"], third["object"]["metadata"]["uid"]) == ("DELETED", made["metadata"]["uid"])
    assert int(third["object"]["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


def test_watch_without_revision_starts_with_existing_objects(cluster: Cluster) -> None:
    path = cluster.path("configmaps")
    cluster.config_map("a")
    cluster.config_map("b")
    with cluster.watch(path, fieldSelector=MINE) as events:
        there = seen(events, 2)
        cluster.config_map("c")
        later = seen(events, 1)
    assert sorted(there) == [("ADDED", "a"), ("ADDED", "b")]
    assert later == [("ADDED", "c")]


def test_selector_changes_become_added_and_deleted(cluster: Cluster) -> None:
    path = cluster.path("configmaps")
    cluster.config_map("a")
    start = cluster.get(path)["metadata"]["resourceVersion"]
    for labels in ({"on": "1"}, {"on": "1", "more": "2"}, {"on": None}):
        cluster.patch(f"{path}/a", {"metadata": {"labels": labels}})
    cluster.http.delete(f"{path}/a")
    cluster.create(path, {"metadata": {"name": "b", "labels": {"on": "1"}}})
    with cluster.watch(path, resourceVersion=start, labelSelector="on=1") as events:
        found = seen(events, 4)
    assert found == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]


def test_a_watch_sees_its_namespace_only(cluster: Cluster) -> None:
    start = cluster.get("/api/v1/configmaps")["metadata"]["resourceVersion"]
    cluster.create("/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": "elsewhere-"}})
    cluster.config_map("here")
    with cluster.watch(cluster.path("configmaps"), resourceVersion=start, fieldSelector=MINE) as events:
        assert seen(events, 1) == [("ADDED", "here")]


def test_one_object_is_watched_by_its_name(cluster: Cluster) -> None:
    path = cluster.path("configmaps")
    start = cluster.get(path)["metadata"]["resourceVersion"]
    cluster.config_map("a")
    cluster.config_map("b")
    with cluster.watch(path, resourceVersion=start, fieldSelector="metadata.name=b") as events:
        assert seen(events, 1) == [("ADDED", "b")]


def test_initial_events_end_with_a_bookmark(cluster: Cluster) -> None:
    cluster.config_map("a")
    query = {
        "sendInitialEvents": "true",
        "allowWatchBookmarks": "true",
        "resourceVersionMatch": "NotOlderThan",
        "resourceVersion": "",
        "fieldSelector": MINE,
    }
    with cluster.watch(cluster.path("configmaps"), **query) as events:
        first, mark = next(events), next(events)
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(mark["object"]["metadata"]["resourceVersion"]) >= int(first["object"]["metadata"]["resourceVersion"])


def test_table_watch_sends_columns_once(cluster: Cluster) -> None:
    path = cluster.path("configmaps")
    start = cluster.get(path)["metadata"]["resourceVersion"]
    cluster.config_map("a")
    cluster.config_map("b")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    query = {"watch": "true", "resourceVersion": start, "timeoutSeconds": "20", "fieldSelector": MINE}
    with cluster.http.stream("GET", path, params=query, headers=accept) as response:
        lines = response.iter_lines()
        tables = [json.loads(next(lines))["object"] for _ in range(2)]
    assert [table["rows"][0]["cells"][0] for table in tables] == ["a", "b"]
    assert [bool(table.get("columnDefinitions")) for table in tables] == [True, False]
