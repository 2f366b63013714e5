"""Patches: merge, JSON, strategic and apply."""

from __future__ import annotations

import pytest

from tests.conformance.cluster import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Cluster,
    Json,
    definition,
    done,
    refused,
)


def deployment(*containers: Json) -> Json:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": list(containers)}}
    return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}


def images(body: Json) -> Json:
    return {one["name"]: one["image"] for one in body["spec"]["template"]["spec"]["containers"]}


def test_a_merge_patch_merges_and_null_removes(cluster: Cluster) -> None:
    cluster.config_map("a", keep="1", change="1", drop="1")
    patched = done(cluster.patch(cluster.path("configmaps", "a"), {"data": {"change": "2", "drop": None, "new": "3"}}))
    assert patched["data"] == {"keep": "1", "change": "2", "new": "3"}


def test_json_patch_is_atomic(cluster: Cluster) -> None:
    cluster.config_map("a", k="v")
    path = cluster.path("configmaps", "a")
    steps = [
        {"op": "test", "path": "/data/k", "value": "v"},
        {"op": "replace", "path": "/data/k", "value": "w"},
        {"op": "add", "path": "/metadata/annotations", "value": {"example.com/x": "y"}},
    ]
    patched = done(cluster.patch(path, steps, JSON_PATCH))
    again = cluster.patch(path, steps, JSON_PATCH)
    assert (patched["data"], patched["metadata"]["annotations"]) == ({"k": "w"}, {"example.com/x": "y"})
    assert refused(again) == (422, "Invalid")
    assert cluster.get(path) == patched


def test_malformed_json_patch_is_bad_request(cluster: Cluster) -> None:
    cluster.config_map("a")
    assert refused(cluster.patch(cluster.path("configmaps", "a"), {"op": "add"}, JSON_PATCH)) == (400, "BadRequest")


def test_patch_at_old_revision_conflicts(cluster: Cluster) -> None:
    made = cluster.config_map("a", k="v")
    path = cluster.path("configmaps", "a")
    done(cluster.patch(path, {"data": {"k": "w"}}))
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"k": "x"}}
    assert refused(cluster.patch(path, stale)) == (409, "Conflict")


def test_patch_of_missing_object_is_not_found(cluster: Cluster) -> None:
    assert refused(cluster.patch(cluster.path("configmaps", "absent"), {"data": {}})) == (404, "NotFound")


def test_unknown_patch_type_is_rejected(cluster: Cluster) -> None:
    cluster.config_map("a")
    assert refused(cluster.patch(cluster.path("configmaps", "a"), {}, "application/json"))[0] == 415


def test_a_strategic_patch_merges_containers_by_name(cluster: Cluster) -> None:
    cluster.create(
        cluster.path("deployments", "", "apps/v1"), deployment({"name": "a", "image": "1"}, {"name": "b", "image": "1"})
    )
    change = {
        "spec": {"template": {"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "2"}]}}}
    }
    patched = done(cluster.patch(cluster.path("deployments", "d", "apps/v1"), change, STRATEGIC_PATCH))
    assert images(patched) == {"a": "1", "b": "2", "c": "2"}


def test_a_strategic_patch_deletes_and_replaces_on_request(cluster: Cluster) -> None:
    path = cluster.path("deployments", "d", "apps/v1")
    cluster.create(
        cluster.path("deployments", "", "apps/v1"), deployment({"name": "a", "image": "1"}, {"name": "b", "image": "1"})
    )
    less = {"spec": {"template": {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}}}
    assert images(done(cluster.patch(path, less, STRATEGIC_PATCH))) == {"b": "1"}
    other = {"spec": {"template": {"spec": {"containers": [{"$patch": "replace"}, {"name": "z", "image": "3"}]}}}}
    assert images(done(cluster.patch(path, other, STRATEGIC_PATCH))) == {"z": "3"}


def test_finalizers_merge_as_a_set(cluster: Cluster) -> None:
    cluster.create(cluster.path("configmaps"), {"metadata": {"name": "a", "finalizers": ["x.test/one"]}})
    path = cluster.path("configmaps", "a")
    more = {"metadata": {"finalizers": ["x.test/two"]}}
    both = done(cluster.patch(path, more, STRATEGIC_PATCH))["metadata"]["finalizers"]
    gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.test/one", "x.test/two"]}}
    none = done(cluster.patch(path, gone, STRATEGIC_PATCH))["metadata"].get("finalizers", [])
    assert (sorted(both), none) == (["x.test/one", "x.test/two"], [])


def test_custom_resources_reject_strategic_patch(cluster: Cluster) -> None:
    with cluster.defined(definition()) as path:
        cluster.create(path, {"apiVersion": api_version(path), "kind": "Thing", "metadata": {"name": "a"}})
        assert refused(cluster.patch(f"{path}/a", {"spec": {}}, STRATEGIC_PATCH))[0] == 415
        patched = done(cluster.patch(f"{path}/a", {"spec": {"list": [1]}}, MERGE_PATCH))
    assert patched["spec"] == {"list": [1]}


def api_version(path: str) -> str:
    return "/".join(path.split("/")[2:4])


def stated(**data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}


def test_apply_creates_and_removes_unlisted_fields(cluster: Cluster) -> None:
    path = cluster.path("configmaps", "a")
    made = cluster.patch(path, stated(x="1", y="1"), APPLY_PATCH, fieldManager="me")
    cluster.patch(path, {"data": {"z": "9"}})
    second = done(cluster.patch(path, stated(x="2"), APPLY_PATCH, fieldManager="me"))
    assert (made.status_code, made.json()["data"]) == (201, {"x": "1", "y": "1"})
    assert second["data"] == {"x": "2", "z": "9"}
    assert ("me", "Apply") in {(one["manager"], one["operation"]) for one in second["metadata"]["managedFields"]}


def test_repeated_apply_creates_no_revision(cluster: Cluster) -> None:
    path = cluster.path("configmaps", "a")
    first = done(cluster.patch(path, stated(x="1"), APPLY_PATCH, fieldManager="me"))
    second = done(cluster.patch(path, stated(x="1"), APPLY_PATCH, fieldManager="me"))
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


def test_conflicting_apply_needs_force(cluster: Cluster) -> None:
    path = cluster.path("configmaps", "a")
    done(cluster.patch(path, stated(x="1", y="1"), APPLY_PATCH, fieldManager="me"))
    response = cluster.patch(path, stated(x="2"), APPLY_PATCH, fieldManager="you")
    assert refused(response) == (409, "Conflict")
    causes = response.json()["details"]["causes"]
    assert [(one["reason"], one["field"]) for one in causes] == [("FieldManagerConflict", ".data.x")]
    assert 'conflict with "me"' in causes[0]["message"]
    forced = done(cluster.patch(path, stated(x="2"), APPLY_PATCH, fieldManager="you", force="true"))
    after = done(cluster.patch(path, stated(y="1"), APPLY_PATCH, fieldManager="me"))
    assert (forced["data"], after["data"]) == ({"x": "2", "y": "1"}, {"x": "2", "y": "1"})


def test_equal_applied_values_are_co_owned(cluster: Cluster) -> None:
    path = cluster.path("configmaps", "a")
    done(cluster.patch(path, stated(x="1"), APPLY_PATCH, fieldManager="me"))
    done(cluster.patch(path, stated(x="1", y="1"), APPLY_PATCH, fieldManager="you"))
    kept = done(cluster.patch(path, stated(), APPLY_PATCH, fieldManager="me"))
    gone = done(cluster.patch(path, stated(y="1"), APPLY_PATCH, fieldManager="you"))
    assert (kept["data"], gone["data"]) == ({"x": "1", "y": "1"}, {"y": "1"})


def test_applied_containers_merge_by_name(cluster: Cluster) -> None:
    path = cluster.path("deployments", "d", "apps/v1")
    head = {"apiVersion": "apps/v1", "kind": "Deployment"}
    one, two = {"name": "a", "image": "1"}, {"name": "b", "image": "1"}
    done(cluster.patch(path, {**head, **deployment(one)}, APPLY_PATCH, fieldManager="me"))
    both = done(cluster.patch(path, {**head, **deployment(two)}, APPLY_PATCH, fieldManager="you"))
    rest = done(cluster.patch(path, {**head, **deployment({**two, "image": "2"})}, APPLY_PATCH, fieldManager="you"))
    assert (images(both), images(rest)) == ({"a": "1", "b": "1"}, {"a": "1", "b": "2"})


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"name": "a"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "managedFields": [{"manager": "x"}]}},
    ],
)
def test_apply_needs_identity_without_managed_fields(cluster: Cluster, body: Json) -> None:
    cluster.config_map("a")
    response = cluster.patch(cluster.path("configmaps", "a"), body, APPLY_PATCH, fieldManager="me")
    assert refused(response) == (400, "BadRequest")


def test_apply_at_old_revision_conflicts(cluster: Cluster) -> None:
    cluster.config_map("a")
    body = {**stated(x="1"), "metadata": {"name": "a", "resourceVersion": "1"}}
    response = cluster.patch(cluster.path("configmaps", "a"), body, APPLY_PATCH, fieldManager="me")
    assert refused(response) == (409, "Conflict")


@pytest.mark.parametrize(
    "step",
    [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "remove", "path": "/data/absent"},
        {"op": "add", "path": "/absent/x", "value": "1"},
        {"op": "replace", "path": "/absent/x", "value": "1"},
        {"op": "replace", "path": "/metadata/managedFields/99", "value": {}},
        {"op": "test", "path": "/data/absent", "value": "1"},
        {"op": "test", "path": "/data/k", "value": None},
        {"op": "test", "path": "/absent/x", "value": None},
    ],
)
def test_inapplicable_json_patch_changes_nothing(cluster: Cluster, step: Json) -> None:
    made = cluster.config_map("a", k="v")
    path = cluster.path("configmaps", "a")
    change = {"op": "replace", "path": "/data/k", "value": "w"}
    assert refused(cluster.patch(path, [change, step], JSON_PATCH)) == (422, "Invalid")
    assert cluster.get(path) == made


def test_json_patch_treats_missing_as_null(cluster: Cluster) -> None:
    """Unlike RFC 6902. NeonVM's autoscaler and other clients set missing fields in this way."""
    cluster.config_map("a", k="v")
    steps = [
        {"op": "test", "path": "/metadata/annotations", "value": None},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "replace", "path": "/metadata/annotations/example.com~1x", "value": "y"},
        {"op": "replace", "path": "/data/new", "value": "w"},
    ]
    patched = done(cluster.patch(cluster.path("configmaps", "a"), steps, JSON_PATCH))
    assert (patched["data"], patched["metadata"]["annotations"]) == ({"k": "v", "new": "w"}, {"example.com/x": "y"})


def test_apply_requires_field_manager(cluster: Cluster) -> None:
    response = cluster.patch(cluster.path("configmaps", "a"), stated(), APPLY_PATCH)
    assert response.status_code in {400, 422}
    assert "fieldManager" in response.json()["message"]
