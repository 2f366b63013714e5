"""Objects that every Kubernetes rejects, with the causes: in pods, in metadata, and in paths."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from tests.conformance.cluster import STRATEGIC_PATCH, Cluster, Json, definition, done, refused

IMAGE = "example.invalid/image"
REQUIRED, INVALID, DUPLICATE, FORBIDDEN = (
    f"FieldValue{word}" for word in ("Required", "Invalid", "Duplicate", "Forbidden")
)
SETTLED = "pod updates may not change fields other than"


def causes(response: httpx.Response) -> list[tuple[str, str]]:
    """Reason and field of all that a 422 names, once: of some kinds Kubernetes checks the metadata twice."""
    assert refused(response) == (422, "Invalid")
    return list(dict.fromkeys((cause["reason"], cause["field"]) for cause in response.json()["details"]["causes"]))


def posted(cluster: Cluster, *containers: Json, **spec: object) -> httpx.Response:
    """The answer to a new pod of these containers."""
    cluster.http.post(cluster.path("serviceaccounts"), json={"metadata": {"name": "default"}})
    whole = {"schedulerName": "none-such", "automountServiceAccountToken": False, "containers": containers, **spec}
    return cluster.http.post(cluster.path("pods"), json={"metadata": {"name": "p"}, "spec": whole})


def container(name: str = "main", **more: object) -> Json:
    return {"name": name, "image": IMAGE, **more}


def with_resources(requests: Json, limits: Json) -> Json:
    return container(resources={"requests": requests, "limits": limits})


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([], [(REQUIRED, "spec.containers")]),
        ([{"image": IMAGE}], [(REQUIRED, "spec.containers[0].name")]),
        ([{"name": "main"}], [(REQUIRED, "spec.containers[0].image")]),
        ([container("Main")], [(INVALID, "spec.containers[0].name")]),
        ([container(), container()], [(DUPLICATE, "spec.containers[1].name")]),
        ([with_resources({"cpu": "2"}, {"cpu": "1"})], [(INVALID, "spec.containers[0].resources.requests")]),
        (
            [with_resources({"memory": "1Gi", "cpu": "1"}, {"memory": "1000Mi", "cpu": "1000m"})],
            [(INVALID, "spec.containers[0].resources.requests")],
        ),
        (
            [with_resources({"x.test/device": "1"}, {"x.test/device": "2"})],
            [(INVALID, "spec.containers[0].resources.requests")],
        ),
        ([with_resources({"x.test/device": "1"}, {})], [(REQUIRED, "spec.containers[0].resources.limits")]),
        (
            [{"name": "main"}, container()],
            [(REQUIRED, "spec.containers[0].image"), (DUPLICATE, "spec.containers[1].name")],
        ),
    ],
)
def test_pod_with_invalid_containers_is_rejected(
    cluster: Cluster, containers: list[Json], expected: list[tuple[str, str]]
) -> None:
    assert causes(posted(cluster, *containers)) == expected


def test_init_containers_share_name_uniqueness(cluster: Cluster) -> None:
    answer = posted(cluster, container(), initContainers=[container("first"), container()])
    assert causes(answer) == [(DUPLICATE, "spec.initContainers[1].name")]
    assert 'Pod "p" is invalid: spec.initContainers[1].name: Duplicate value: "main"' in answer.json()["message"]


def test_requests_above_limits_name_the_limit(cluster: Cluster) -> None:
    answer = posted(cluster, with_resources({"cpu": "2"}, {"cpu": "1"}))
    told = 'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'
    assert answer.json()["message"] == f'Pod "p" is invalid: {told}'


def test_requests_up_to_limits_are_accepted(cluster: Cluster) -> None:
    asked = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    done(posted(cluster, with_resources(asked, {**asked, "cpu": "2"})))


@pytest.mark.parametrize(
    "change",
    [
        {"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}]}]},
        {"containers": [{"name": "main", "command": ["sleep"]}]},
        {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        {"terminationGracePeriodSeconds": 5},
        {"hostNetwork": True},
    ],
)
def test_pod_containers_are_immutable(cluster: Cluster, change: Json) -> None:
    before = cluster.pod("p")
    answer = cluster.patch(cluster.path("pods", "p"), {"spec": change}, STRATEGIC_PATCH)
    assert causes(answer) == [(FORBIDDEN, "spec")]
    assert SETTLED in answer.json()["message"]
    assert cluster.get(cluster.path("pods", "p"))["spec"] == before["spec"]


def test_pod_containers_cannot_be_added_or_removed(cluster: Cluster) -> None:
    cluster.pod("p")
    more = {"spec": {"containers": [container("more")]}}
    answer = cluster.patch(cluster.path("pods", "p"), more, STRATEGIC_PATCH)
    assert (FORBIDDEN, "spec.containers") in causes(answer)
    assert "pod updates may not add or remove containers" in answer.json()["message"]


def test_pod_image_deadline_and_tolerations_change(cluster: Cluster) -> None:
    cluster.pod("p")
    path = cluster.path("pods", "p")
    toleration = {"key": "x.test/a", "operator": "Exists", "effect": "NoExecute"}
    image = {"containers": [{"name": "main", "image": "example.invalid/other"}]}
    done(cluster.patch(path, {"spec": {**image, "activeDeadlineSeconds": 60}}, STRATEGIC_PATCH))
    own = cluster.get(path)["spec"].get("tolerations", [])
    done(cluster.patch(path, {"spec": {"tolerations": [*own, toleration]}}))
    lasting = {**toleration, "tolerationSeconds": 5}
    done(cluster.patch(path, {"spec": {"tolerations": [*own, lasting], "activeDeadlineSeconds": 30}}))
    after = cluster.get(path)["spec"]
    assert (after["containers"][0]["image"], after["activeDeadlineSeconds"]) == ("example.invalid/other", 30)
    assert after["tolerations"] == [*own, lasting]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tolerations": []}, (FORBIDDEN, "spec.tolerations")),
        ({"tolerations": [{"key": "x.test/b", "operator": "Exists"}]}, (FORBIDDEN, "spec.tolerations")),
        ({"activeDeadlineSeconds": 61}, (INVALID, "spec.activeDeadlineSeconds")),
        ({"activeDeadlineSeconds": None}, (INVALID, "spec.activeDeadlineSeconds")),
        ({"containers": [{"name": "main", "image": ""}]}, (REQUIRED, "spec.containers[0].image")),
    ],
)
def test_tolerations_only_grow_and_deadline_only_shrinks(
    cluster: Cluster, change: Json, expected: tuple[str, str]
) -> None:
    done(
        posted(cluster, container(), activeDeadlineSeconds=60, tolerations=[{"key": "x.test/a", "operator": "Exists"}])
    )
    answer = cluster.patch(cluster.path("pods", "p"), {"spec": change}, STRATEGIC_PATCH)
    assert expected in causes(answer)


def test_negative_grace_period_becomes_one_second(cluster: Cluster) -> None:
    done(posted(cluster, container(), terminationGracePeriodSeconds=-5))
    path = cluster.path("pods", "p")
    assert causes(cluster.patch(path, {"spec": {"terminationGracePeriodSeconds": 2}})) == [(FORBIDDEN, "spec")]
    changed = done(cluster.patch(path, {"spec": {"terminationGracePeriodSeconds": 1}}))
    assert changed["spec"]["terminationGracePeriodSeconds"] == 1


def test_scheduling_gates_can_only_be_removed(cluster: Cluster) -> None:
    done(posted(cluster, container(), schedulingGates=[{"name": "x.test/a"}, {"name": "x.test/b"}]))
    path = cluster.path("pods", "p")
    done(cluster.patch(path, {"spec": {"schedulingGates": [{"name": "x.test/b"}]}}))
    answer = cluster.patch(path, {"spec": {"schedulingGates": [{"name": "x.test/b"}, {"name": "x.test/c"}]}})
    assert causes(answer) == [(FORBIDDEN, "spec.schedulingGates[1].name")]


def test_terminating_object_gets_no_new_finalizer(cluster: Cluster) -> None:
    path = cluster.path("configmaps", "a")
    cluster.create(cluster.path("configmaps"), {"metadata": {"name": "a", "finalizers": ["x.test/one", "x.test/two"]}})
    done(cluster.http.delete(path))
    answer = cluster.patch(path, {"metadata": {"finalizers": ["x.test/one", "x.test/three"]}})
    assert causes(answer) == [(FORBIDDEN, "metadata.finalizers")]
    assert 'if the object is being deleted, found new finalizers []string{"x.test/three"}' in answer.json()["message"]
    kept = done(cluster.patch(path, {"metadata": {"finalizers": ["x.test/two"]}}))
    assert kept["metadata"]["finalizers"] == ["x.test/two"]
    done(cluster.patch(path, {"metadata": {"finalizers": None}}))


@pytest.mark.parametrize(
    ("finalizer", "expected"),
    [
        ("not qualified!", [(INVALID, "metadata.finalizers"), (INVALID, "metadata.finalizers[0]")]),
        ("unqualified", [(INVALID, "metadata.finalizers[0]")]),
        ("x.test/not a name", [(INVALID, "metadata.finalizers")]),
    ],
)
def test_a_finalizer_has_a_qualified_name(cluster: Cluster, finalizer: str, expected: list[tuple[str, str]]) -> None:
    body = {"metadata": {"name": "a", "finalizers": [finalizer]}}
    assert causes(cluster.http.post(cluster.path("configmaps"), json=body)) == expected
    cluster.config_map("b")
    answer = cluster.patch(cluster.path("configmaps", "b"), {"metadata": {"finalizers": [finalizer]}})
    assert causes(answer) == expected


def test_custom_resource_finalizer_needs_no_domain(cluster: Cluster) -> None:
    with cluster.defined(definition()) as path:
        _, api, group, version, *_ = path.split("/")
        head = {"apiVersion": f"{group}/{version}", "kind": "Thing"}
        assert api == "apis"
        wrong = {**head, "metadata": {"name": "a", "finalizers": ["not qualified!"]}}
        assert causes(cluster.http.post(path, json=wrong)) == [(INVALID, "metadata.finalizers")]
        done(cluster.http.post(path, json={**head, "metadata": {"name": "a", "finalizers": ["unqualified"]}}))
        done(cluster.patch(f"{path}/a", {"metadata": {"finalizers": None}}))


def owner(name: str, **more: object) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-of-{name}", **more}


def test_an_object_has_one_controller(cluster: Cluster) -> None:
    owners = [owner("p", controller=True), owner("q"), owner("r", controller=True)]
    body = {"metadata": {"name": "a", "ownerReferences": owners}}
    answer = cluster.http.post(cluster.path("configmaps"), json=body)
    assert causes(answer) == [(INVALID, "metadata.ownerReferences")]
    told = 'Only one reference can have Controller set to true. Found "true" in references for Pod/p and Pod/r'
    assert answer.json()["message"].endswith(told)


@pytest.mark.parametrize("part", ["apiVersion", "kind", "name", "uid"])
def test_owner_reference_needs_all_fields(cluster: Cluster, part: str) -> None:
    body = {"metadata": {"name": "a", "ownerReferences": [{**owner("p"), part: ""}]}}
    answer = cluster.http.post(cluster.path("configmaps"), json=body)
    assert causes(answer) == [(INVALID, f"metadata.ownerReferences.{part}")]
    assert answer.json()["message"].endswith("must not be empty")


@pytest.mark.parametrize("name", ["default", "kube-system"])
def test_system_namespaces_cannot_be_deleted(cluster: Cluster, name: str) -> None:
    cluster.http.post("/api/v1/namespaces", json={"metadata": {"name": name}})
    answer = cluster.http.delete(f"/api/v1/namespaces/{name}", params={"dryRun": "All"})
    assert refused(answer) == (403, "Forbidden")
    assert answer.json()["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


def test_writes_need_a_namespace(cluster: Cluster) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [container()]}}
    assert refused(cluster.http.post("/api/v1/pods", json=body)) == (405, "MethodNotAllowed")
    assert refused(cluster.http.delete("/api/v1/pods", params={"dryRun": "All"})) == (405, "MethodNotAllowed")
    assert refused(cluster.http.delete("/api/v1/namespaces", params={"dryRun": "All"})) == (405, "MethodNotAllowed")
    with cluster.defined(definition()) as path:
        everywhere = f"{path.partition('/namespaces/')[0]}/things"
        assert cluster.http.get(everywhere).status_code == 200
        thing = {"apiVersion": everywhere.removeprefix("/apis/").removesuffix("/things"), "kind": "Thing"}
        assert cluster.http.post(everywhere, json={**thing, "metadata": {"name": "a"}}).status_code == 404
