"""Lists: selected, in pages, and in the forms that clients ask for."""

from __future__ import annotations

import pytest

from tests.conformance.cluster import Cluster, Json, done, refused

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def names(listed: Json) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


@pytest.fixture
def labelled(cluster: Cluster) -> Cluster:
    for name, labels in (
        ("a", {"tier": "web"}),
        ("b", {"tier": "db", "env": "test"}),
        ("c", {"env": "live"}),
        ("d", {}),
    ):
        cluster.create(cluster.path("configmaps"), {"metadata": {"name": name, "labels": {"t": "1", **labels}}})
    return cluster


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("t", "abcd"),
        ("tier=web", "a"),
        ("tier==web", "a"),
        ("tier!=web,t=1", "bcd"),
        ("tier", "ab"),
        ("!tier,t", "cd"),
        ("tier in (web, db)", "ab"),
        ("tier notin (web),t", "bcd"),
        ("env in (test),tier=db", "b"),
        ("tier=nothing", ""),
    ],
)
def test_label_selectors(labelled: Cluster, selector: str, expected: str) -> None:
    assert names(labelled.get(labelled.path("configmaps"), labelSelector=selector)) == list(expected)


@pytest.mark.parametrize("selector", ["tier in web", "=x", "a b"])
def test_invalid_selector_is_bad_request(labelled: Cluster, selector: str) -> None:
    response = labelled.http.get(labelled.path("configmaps"), params={"labelSelector": selector})
    assert refused(response) == (400, "BadRequest")


def test_field_selectors(cluster: Cluster) -> None:
    cluster.pod("p")
    cluster.pod("q")
    done(cluster.patch(cluster.path("pods", "q", "v1") + "/status", {"status": {"phase": "Running"}}))
    pods = cluster.path("pods")
    assert names(cluster.get(pods, fieldSelector="metadata.name=p")) == ["p"]
    assert names(cluster.get(pods, fieldSelector="status.phase=Running")) == ["q"]
    assert names(cluster.get(pods, fieldSelector="spec.nodeName=,status.phase!=Running")) == ["p"]
    response = cluster.http.get(pods, params={"fieldSelector": "spec.unheardOf=1"})
    assert refused(response) == (400, "BadRequest")
    assert "field label not supported: spec.unheardOf" in response.json()["message"]


def test_pages_are_from_one_revision(cluster: Cluster) -> None:
    for name in "abcde":
        cluster.config_map(name, moment="first")
    path, selector = cluster.path("configmaps"), {"fieldSelector": "metadata.name!=kube-root-ca.crt"}
    first = cluster.get(path, limit=2, **selector)
    cluster.http.delete(f"{path}/c")
    cluster.config_map("dd")
    cluster.patch(f"{path}/e", {"data": {"moment": "second"}})
    second = cluster.get(path, limit=2, **selector, **{"continue": first["metadata"]["continue"]})
    third = cluster.get(path, limit=2, **selector, **{"continue": second["metadata"]["continue"]})
    assert [names(page) for page in (first, second, third)] == [["a", "b"], ["c", "d"], ["e"]]
    assert third["items"][0]["data"] == {"moment": "first"}
    assert len({page["metadata"]["resourceVersion"] for page in (first, second, third)}) == 1
    assert not third["metadata"].get("continue")


def test_invalid_continue_token_is_rejected(cluster: Cluster) -> None:
    response = cluster.http.get(cluster.path("configmaps"), params={"limit": "1", "continue": "nonsense"})
    assert refused(response) == (400, "BadRequest")


def test_list_at_exact_revision_returns_old_state(cluster: Cluster) -> None:
    cluster.config_map("a", k="then")
    path, only = cluster.path("configmaps"), "metadata.name=a"
    moment = cluster.get(path)["metadata"]["resourceVersion"]
    cluster.patch(f"{path}/a", {"data": {"k": "now"}})
    exact = {"resourceVersion": moment, "resourceVersionMatch": "Exact", "limit": "10"}
    then = cluster.get(path, fieldSelector=only, **exact)
    now = cluster.get(path, fieldSelector=only, resourceVersion=moment, resourceVersionMatch="NotOlderThan")
    assert [then["items"][0]["data"]["k"], now["items"][0]["data"]["k"]] == ["then", "now"]
    assert then["metadata"]["resourceVersion"] == moment


def test_non_numeric_revision_is_rejected(cluster: Cluster) -> None:
    assert cluster.http.get(cluster.path("configmaps"), params={"resourceVersion": "x"}).status_code == 400


def test_list_across_namespaces(cluster: Cluster) -> None:
    cluster.create(cluster.path("configmaps"), {"metadata": {"name": "a", "labels": {"of": cluster.namespace}}})
    listed = cluster.get("/api/v1/configmaps", labelSelector=f"of={cluster.namespace}")
    assert (listed["kind"], names(listed)) == ("ConfigMapList", ["a"])


def test_a_collection_is_deleted_by_selector(labelled: Cluster) -> None:
    path = labelled.path("configmaps")
    done(labelled.http.delete(path, params={"labelSelector": "tier"}))
    assert names(labelled.get(path, labelSelector="t")) == ["c", "d"]


def test_lists_as_tables(cluster: Cluster) -> None:
    cluster.pod("p")
    selector = {"fieldSelector": "metadata.name=p"}
    table = done(cluster.http.get(cluster.path("pods"), headers={"Accept": TABLE}, params=selector))
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    titles = [column["name"] for column in table["columnDefinitions"]]
    row = dict(zip(titles, table["rows"][0]["cells"], strict=True))
    assert titles[:4] == ["Name", "Ready", "Status", "Restarts"]
    assert (row["Name"], row["Ready"], row["Status"]) == ("p", "0/1", "Pending")
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_lists_as_partial_metadata(cluster: Cluster) -> None:
    cluster.config_map("a", k="v")
    selector = {"fieldSelector": "metadata.name=a"}
    listed = done(cluster.http.get(cluster.path("configmaps"), headers={"Accept": PARTIAL}, params=selector))
    assert (listed["kind"], names(listed)) == ("PartialObjectMetadataList", ["a"])
    assert "data" not in listed["items"][0]


def test_unknown_media_type_is_not_acceptable(cluster: Cluster) -> None:
    response = cluster.http.get(cluster.path("configmaps"), headers={"Accept": "text/html"})
    assert response.status_code == 406
