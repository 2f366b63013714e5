"""Objects: made, read, changed, and refused."""

from __future__ import annotations

import pytest

from tests.conformance.cluster import Cluster, done, refused


def test_server_assigns_object_identity(cluster: Cluster) -> None:
    given = {"metadata": {"name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z"}, "data": {"k": "v"}}
    made = cluster.create(cluster.path("configmaps"), given)
    meta = made["metadata"]
    assert (made["kind"], made["apiVersion"], made["data"]) == ("ConfigMap", "v1", {"k": "v"})
    assert (meta["name"], meta["namespace"]) == ("a", cluster.namespace)
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] > "2020"
    assert int(meta["resourceVersion"]) > 0
    assert cluster.get(cluster.path("configmaps", "a")) == made


def test_timeout_parameter_is_validated(cluster: Cluster) -> None:
    """After its timeout, a write can no longer be applied."""
    path = cluster.path("configmaps")
    cluster.config_map("a")
    answers = [
        cluster.http.patch(
            f"{path}/a",
            params={"timeout": span},
            content=b"{}",
            headers={"Content-Type": "application/merge-patch+json"},
        )
        for span in ("3s", "1m500ms", "0s", "0", "soon", "3")
    ]
    assert [each.status_code for each in answers] == [200, 200, 200, 200, 400, 400]
    assert refused(answers[-1]) == (400, "BadRequest")


def test_generate_name_completes_the_name(cluster: Cluster) -> None:
    names = {
        cluster.create(cluster.path("configmaps"), {"metadata": {"generateName": "part-"}})["metadata"]["name"]
        for _ in range(3)
    }
    assert len(names) == 3
    assert all(name.startswith("part-") and len(name) == len("part-") + 5 for name in names)


def test_missing_object_is_not_found(cluster: Cluster) -> None:
    response = cluster.http.get(cluster.path("configmaps", "absent"))
    assert refused(response) == (404, "NotFound")
    assert response.json()["message"] == 'configmaps "absent" not found'
    assert response.json()["details"] == {"name": "absent", "kind": "configmaps"}


@pytest.mark.parametrize("path", ["/api/v1/nothings", "/apis/no.group/v1/things", "/api/v9/pods"])
def test_unserved_resource_is_not_found(cluster: Cluster, path: str) -> None:
    assert cluster.http.get(path).status_code == 404


def test_duplicate_name_already_exists(cluster: Cluster) -> None:
    cluster.config_map("a")
    response = cluster.http.post(cluster.path("configmaps"), json={"metadata": {"name": "a"}})
    assert refused(response) == (409, "AlreadyExists")
    assert response.json()["message"] == 'configmaps "a" already exists'


def test_object_needs_existing_namespace(cluster: Cluster) -> None:
    response = cluster.http.post("/api/v1/namespaces/nowhere/configmaps", json={"metadata": {"name": "a"}})
    assert refused(response) == (404, "NotFound")
    assert response.json()["message"] == 'namespaces "nowhere" not found'


@pytest.mark.parametrize(
    ("metadata", "where"),
    [
        ({"labels": {"a b": "c"}}, ["metadata.labels"]),
        ({"labels": {"/b": "c"}}, ["metadata.labels"]),
        ({"labels": {"a..b/c": "d"}}, ["metadata.labels"]),
        ({"labels": {"a/b/c": "d"}}, ["metadata.labels"]),
        ({"labels": {"": "c"}}, ["metadata.labels"] * 2),
        ({"labels": {"x" * 64: "c"}}, ["metadata.labels"]),
        ({"labels": {"a": "b c"}}, ["metadata.labels"]),
        ({"labels": {"a": "b" * 64}}, ["metadata.labels"]),
        ({"labels": {"a b": "b c" * 64}}, ["metadata.labels"] * 3),
        ({"annotations": {"a b": "any thing"}}, ["metadata.annotations"]),
    ],
)
def test_invalid_labels_and_annotations_name_the_field(
    cluster: Cluster, metadata: dict[str, object], where: list[str]
) -> None:
    response = cluster.http.post(cluster.path("configmaps"), json={"metadata": {"name": "a", **metadata}})
    assert refused(response) == (422, "Invalid")
    assert [cause["field"] for cause in response.json()["details"]["causes"]] == where


def test_valid_labels_and_annotations_are_accepted(cluster: Cluster) -> None:
    labels = {"example.com/A_b.c-d": "", "a": "B_c.d-1"}
    made = cluster.create(
        cluster.path("configmaps"), {"metadata": {"name": "a", "labels": labels, "annotations": {"E.com/x": "a b"}}}
    )
    assert made["metadata"]["labels"] == labels


def test_invalid_name_names_the_field(cluster: Cluster) -> None:
    response = cluster.http.post(cluster.path("configmaps"), json={"metadata": {"name": "Not_A_Name"}})
    assert refused(response) == (422, "Invalid")
    assert [cause["field"] for cause in response.json()["details"]["causes"]] == ["metadata.name"]
    assert "RFC 1123" in response.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "Secret", "metadata": {"name": "a"}},
        {"metadata": {"name": "a", "namespace": "another"}},
        {"metadata": {"name": "a", "labels": {"number": 1}}},
    ],
)
def test_object_of_other_path_is_bad_request(cluster: Cluster, body: dict[str, object]) -> None:
    assert refused(cluster.http.post(cluster.path("configmaps"), json=body)) == (400, "BadRequest")


def test_malformed_json_is_bad_request(cluster: Cluster) -> None:
    headers = {"Content-Type": "application/json"}
    response = cluster.http.post(cluster.path("configmaps"), content=b"{not json", headers=headers)
    assert refused(response)[0] == 400


def test_update_at_newest_revision_succeeds(cluster: Cluster) -> None:
    made = cluster.config_map("a", k="v")
    changed = done(cluster.http.put(cluster.path("configmaps", "a"), json={**made, "data": {"k": "w"}}))
    assert changed["data"] == {"k": "w"}
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]


def test_update_at_old_revision_conflicts(cluster: Cluster) -> None:
    made = cluster.config_map("a", k="v")
    done(cluster.http.put(cluster.path("configmaps", "a"), json={**made, "data": {"k": "w"}}))
    response = cluster.http.put(cluster.path("configmaps", "a"), json={**made, "data": {"k": "x"}})
    assert refused(response) == (409, "Conflict")
    assert response.json()["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert cluster.get(cluster.path("configmaps", "a"))["data"] == {"k": "w"}


def test_update_without_revision_overwrites(cluster: Cluster) -> None:
    cluster.config_map("a", k="v")
    changed = done(
        cluster.http.put(cluster.path("configmaps", "a"), json={"metadata": {"name": "a"}, "data": {"n": "1"}})
    )
    assert changed["data"] == {"n": "1"}


def test_no_op_update_creates_no_revision(cluster: Cluster) -> None:
    made = cluster.config_map("a", k="v")
    assert done(cluster.http.put(cluster.path("configmaps", "a"), json=made)) == made


def test_update_with_other_name_is_rejected(cluster: Cluster) -> None:
    made = cluster.config_map("a")
    renamed = {**made, "metadata": {**made["metadata"], "name": "b"}}
    assert refused(cluster.http.put(cluster.path("configmaps", "a"), json=renamed)) == (400, "BadRequest")


def test_update_with_other_uid_conflicts(cluster: Cluster) -> None:
    cluster.config_map("a")
    body = {"metadata": {"name": "a", "uid": "11111111-1111-1111-1111-111111111111"}}
    assert refused(cluster.http.put(cluster.path("configmaps", "a"), json=body)) == (409, "Conflict")


def test_dry_run_changes_nothing(cluster: Cluster) -> None:
    made = done(
        cluster.http.post(cluster.path("configmaps"), json={"metadata": {"name": "a"}}, params={"dryRun": "All"})
    )
    assert made["metadata"]["uid"]
    assert refused(cluster.http.get(cluster.path("configmaps", "a"))) == (404, "NotFound")
    kept = cluster.config_map("b", k="v")
    done(cluster.http.delete(cluster.path("configmaps", "b"), params={"dryRun": "All"}))
    done(cluster.patch(cluster.path("configmaps", "b"), {"data": {"k": "w"}}, dryRun="All"))
    assert cluster.get(cluster.path("configmaps", "b")) == kept


def test_spec_and_status_are_updated_separately(cluster: Cluster) -> None:
    cluster.pod("p")
    path = cluster.path("pods", "p")
    done(cluster.patch(path, {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}))
    through_spec = cluster.get(path)
    done(cluster.patch(f"{path}/status", {"status": {"message": "hello"}, "spec": {"activeDeadlineSeconds": 5}}))
    through_status = cluster.get(path)
    assert (through_spec["status"]["phase"], through_spec["metadata"]["labels"]) == ("Pending", {"a": "b"})
    assert through_status["status"]["message"] == "hello"
    assert through_status["spec"] == through_spec["spec"]


def test_pod_status_update_may_set_labels(cluster: Cluster) -> None:
    owner = cluster.config_map("owner")["metadata"]
    cluster.pod("p")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    beside = {"labels": {"l": "1"}, "annotations": {"a": "1"}, "ownerReferences": [reference]}
    done(cluster.patch(f"{cluster.path('pods', 'p')}/status", {"metadata": beside}))
    after = cluster.get(cluster.path("pods", "p"))["metadata"]
    assert (after["labels"], after["annotations"], "ownerReferences" in after) == ({"l": "1"}, {"a": "1"}, False)


def test_new_pod_is_always_pending(cluster: Cluster) -> None:
    cluster.pod("p")
    pod = cluster.get(cluster.path("pods", "p"))
    assert (pod["status"]["phase"], pod["status"]["qosClass"]) == ("Pending", "BestEffort")
    assert (pod["spec"]["restartPolicy"], pod["spec"]["terminationGracePeriodSeconds"]) == ("Always", 30)


def test_pod_spec_is_immutable(cluster: Cluster) -> None:
    cluster.pod("p")
    response = cluster.patch(cluster.path("pods", "p"), {"spec": {"schedulerName": "another"}})
    assert refused(response) == (422, "Invalid")
    assert "pod updates may not change fields other than" in response.json()["message"]


def test_the_generation_counts_changes_of_the_spec(cluster: Cluster) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    path = cluster.path("deployments", "d", "apps/v1")
    made = cluster.create(cluster.path("deployments", "", "apps/v1"), {"metadata": {"name": "d"}, "spec": spec})
    labelled = done(cluster.patch(path, {"metadata": {"labels": {"x": "y"}}}))
    scaled = done(cluster.patch(path, {"spec": {"replicas": 2}}))
    assert [one["metadata"]["generation"] for one in (made, labelled, scaled)] == [1, 1, 2]


def test_secret_accepts_string_data(cluster: Cluster) -> None:
    made = cluster.create(cluster.path("secrets"), {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
    assert (made["data"], made["type"], "stringData" in made) == ({"k": "dg=="}, "Opaque", False)
