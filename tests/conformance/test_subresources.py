"""Subresources: a pod's node, an eviction, a scale, a token; and who a token's holder is."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable

import httpx2 as httpx
import pytest

from tests.conformance.cluster import MERGE_PATCH, STRATEGIC_PATCH, Cluster, Json, done, refused

AUTH = "/apis/authentication.k8s.io/v1"
AUDIENCE = "another"
_UNSEEN_TOKENS = 20
_LOOKS = 100
_PAUSE = 0.1


def bind(cluster: Cluster, name: str, node: str, **metadata: object) -> tuple[int, str]:
    body = {"metadata": {"name": name, **metadata}, "target": {"kind": "Node", "name": node}}
    response = cluster.http.post(f"{cluster.path('pods', name)}/binding", json=body)
    return (response.status_code, response.json().get("status", ""))


def test_second_binding_conflicts(cluster: Cluster) -> None:
    cluster.pod("p")
    assert bind(cluster, "p", cluster.node, annotations={"x.test/by": "me"}) == (201, "Success")
    pod = cluster.get(cluster.path("pods", "p"))
    assert pod["spec"]["nodeName"] == cluster.node
    assert pod["metadata"]["annotations"]["x.test/by"] == "me"
    assert [(one["type"], one["status"]) for one in pod["status"]["conditions"]] == [("PodScheduled", "True")]
    assert bind(cluster, "p", "another-node") == (409, "Failure")
    assert cluster.get(cluster.path("pods", "p")) == pod


def test_binding_checks_pod_uid(cluster: Cluster) -> None:
    pod = cluster.pod("p")
    assert bind(cluster, "p", cluster.node, uid="11111111-1111-1111-1111-111111111111") == (409, "Failure")
    assert bind(cluster, "absent", cluster.node) == (404, "Failure")
    assert bind(cluster, "p", cluster.node, uid=pod["metadata"]["uid"]) == (201, "Success")


def evict(cluster: Cluster, name: str) -> tuple[int, Json]:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": cluster.namespace}}
    response = cluster.http.post(f"{cluster.path('pods', name)}/eviction", json=body)
    return response.status_code, response.json()


def test_an_eviction_deletes_unless_a_budget_forbids(cluster: Cluster) -> None:
    cluster.pod("free")
    cluster.pod("guarded", labels={"app": "db"})
    bind(cluster, "guarded", cluster.node)
    done(cluster.patch(f"{cluster.path('pods', 'guarded')}/status", {"status": {"phase": "Running"}}))
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}}
    cluster.create(cluster.path("poddisruptionbudgets", "", "policy/v1"), budget)
    assert evict(cluster, "free")[0] == 201
    code, status = evict(cluster, "guarded")
    assert (code, status["reason"]) == (429, "TooManyRequests")
    assert "disruption budget" in status["message"]
    assert cluster.http.get(cluster.path("pods", "free")).status_code == 404
    assert "deletionTimestamp" not in cluster.get(cluster.path("pods", "guarded"))["metadata"]


def test_scale_shows_and_sets_the_replicas(cluster: Cluster) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    cluster.create(cluster.path("deployments", "", "apps/v1"), {"metadata": {"name": "d"}, "spec": spec})
    path = cluster.path("deployments", "d", "apps/v1")
    scale = cluster.get(f"{path}/scale")
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 2})
    assert (scale["status"]["replicas"], scale["status"]["selector"]) == (0, "a=b")
    done(_put_scale(cluster, path, 3))
    assert refused(cluster.http.put(f"{path}/scale", json={**scale, "spec": {"replicas": 4}})) == (409, "Conflict")
    done(cluster.patch(f"{path}/scale", {"spec": {"replicas": 5}}, MERGE_PATCH))
    assert refused(cluster.patch(f"{path}/scale", {"spec": {"replicas": -1}}, MERGE_PATCH)) == (422, "Invalid")
    assert cluster.get(path)["spec"]["replicas"] == 5


def _put_scale(cluster: Cluster, path: str, replicas: int, tries: int = 50) -> httpx.Response:
    """Puts the newest scale. A real cluster's controller may write the deployment in between: then it is read again."""
    scale = cluster.get(f"{path}/scale")
    said = cluster.http.put(f"{path}/scale", json={**scale, "spec": {"replicas": replicas}})
    if said.status_code == httpx.codes.CONFLICT and tries:
        return _put_scale(cluster, path, replicas, tries - 1)
    return said


def sized_pod(cluster: Cluster, name: str) -> str:
    """A pod with requests; its path."""
    containers = [{"name": "main", "image": "example.invalid/image", "resources": {"requests": {"cpu": "1"}}}]
    cluster.http.post(cluster.path("serviceaccounts"), json={"metadata": {"name": "default"}})
    spec = {"schedulerName": "none-such", "automountServiceAccountToken": False, "containers": containers}
    cluster.create(cluster.path("pods"), {"metadata": {"name": name}, "spec": spec})
    return cluster.path("pods", name)


def resources_patch(**resources: object) -> Json:
    return {"spec": {"containers": [{"name": "main", "resources": resources}]}}


def test_only_resize_subresource_resizes_pods(cluster: Cluster) -> None:
    path = sized_pod(cluster, "p")
    before = cluster.get(path)
    larger = resources_patch(requests={"cpu": "2"})
    assert refused(cluster.patch(path, larger, STRATEGIC_PATCH)) == (422, "Invalid")
    after = done(cluster.patch(f"{path}/resize", larger, STRATEGIC_PATCH))
    assert after["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert (after["status"]["phase"], cluster.get(f"{path}/resize")) == ("Pending", after)


def test_resize_keeps_qos_class_and_other_fields(cluster: Cluster) -> None:
    path = sized_pod(cluster, "p")
    nothing_left = resources_patch(requests={"cpu": None})
    guaranteed = resources_patch(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "1", "memory": "1Gi"})
    another_resource = resources_patch(requests={"cpu": "1", "example.com/gpu": "1"}, limits={"example.com/gpu": "1"})
    another_container = {"spec": {"containers": [{"name": "more", "image": "example.invalid/image"}]}}
    for wrong in (nothing_left, guaranteed, another_resource, another_container):
        assert refused(cluster.patch(f"{path}/resize", wrong, STRATEGIC_PATCH)) == (422, "Invalid")
    version = {"metadata": {"resourceVersion": "1"}, **resources_patch(requests={"cpu": "2"})}
    assert refused(cluster.patch(f"{path}/resize", version, STRATEGIC_PATCH)) == (409, "Conflict")
    assert cluster.get(path)["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}


@pytest.mark.parametrize(
    "beside",
    [
        {"spec": {"containers": [{"name": "main", "image": "example.invalid/other"}]}},
        {"spec": {"activeDeadlineSeconds": 5}},
        {"metadata": {"labels": {"a": "b"}}},
        {"status": {"phase": "Running"}},
    ],
)
def test_resize_ignores_other_fields(cluster: Cluster, beside: Json) -> None:
    path = sized_pod(cluster, "p")
    before = cluster.get(path)
    after = done(cluster.patch(f"{path}/resize", beside, STRATEGIC_PATCH))
    assert (after["spec"], after["status"]) == (before["spec"], before["status"])
    assert (after["metadata"]["generation"], "labels" in after["metadata"]) == (before["metadata"]["generation"], False)


def test_resize_above_limit_is_rejected(cluster: Cluster) -> None:
    path = sized_pod(cluster, "p")
    done(cluster.patch(f"{path}/resize", resources_patch(limits={"cpu": "2"}), STRATEGIC_PATCH))
    answer = cluster.patch(f"{path}/resize", resources_patch(requests={"cpu": "3"}), STRATEGIC_PATCH)
    assert refused(answer) == (422, "Invalid")
    assert "must be less than or equal to cpu limit of 2" in answer.json()["message"]


def test_resize_beyond_node_is_rejected(cluster: Cluster) -> None:
    path = sized_pod(cluster, "p")
    bind(cluster, "p", cluster.node)
    larger = resources_patch(requests={"cpu": "2", "memory": "1Gi"})
    gone = cluster.patch(f"{path}/resize", larger, STRATEGIC_PATCH)
    assert refused(gone) == (403, "Forbidden")
    assert f'node "{cluster.node}" not found' in gone.json()["message"]
    size = {"cpu": "2", "memory": "1Gi", "pods": "10"}
    status = {"allocatable": size, "capacity": size}
    cluster.create("/api/v1/nodes", {"metadata": {"name": cluster.node}, "status": status})
    try:
        until_known(lambda: cluster.patch(f"{path}/resize", larger, STRATEGIC_PATCH).status_code == 200)
        answer = cluster.patch(f"{path}/resize", resources_patch(requests={"cpu": "2001m"}), STRATEGIC_PATCH)
        assert refused(answer) == (403, "Forbidden")
        told = "node didn't have enough allocatable resources: cpu, requested: 2001, allocatable: 2000"
        assert told in answer.json()["message"]
        assert [each["reason"] for each in answer.json()["details"]["causes"]] == ["NodeCapacity"]
    finally:
        cluster.http.delete(f"/api/v1/nodes/{cluster.node}")


def until_known(look: Callable[[], bool]) -> None:
    """The API server's own admission sees a new node a moment after it was made."""
    for _ in range(_LOOKS):
        if look():
            return
        time.sleep(_PAUSE)
    raise AssertionError("the node is not known")


def test_hpa_needs_target_and_valid_bounds(cluster: Cluster) -> None:
    path = cluster.path("horizontalpodautoscalers", "", "autoscaling/v2")
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    made = cluster.create(path, {"metadata": {"name": "a"}, "spec": {"scaleTargetRef": target, "maxReplicas": 3}})
    assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == (1, 3)
    done(cluster.patch(f"{path}/a/status", {"status": {"currentReplicas": 1, "desiredReplicas": 2}}))
    assert cluster.get(f"{path}/a")["status"]["desiredReplicas"] == 2
    for wrong in (
        {"maxReplicas": 3},
        {"scaleTargetRef": target, "maxReplicas": 0},
        {"scaleTargetRef": target, "minReplicas": 4, "maxReplicas": 3},
        {"scaleTargetRef": target, "minReplicas": 0, "maxReplicas": 3},
    ):
        response = cluster.http.post(path, json={"metadata": {"name": "b"}, "spec": wrong})
        assert refused(response) == (422, "Invalid")


def token(cluster: Cluster, **spec: object) -> Json:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return done(cluster.http.post(f"{cluster.path('serviceaccounts', 'default')}/token", json=body))


def bound(cluster: Cluster, pod: Json) -> str:
    reference = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    text: str = token(cluster, audiences=[AUDIENCE], boundObjectRef=reference, expirationSeconds=600)["status"]["token"]
    return text


def review(cluster: Cluster, text: str, *audiences: str) -> Json:
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": text, "audiences": audiences},
    }
    status: Json = done(cluster.http.post(f"{AUTH}/tokenreviews", json=body))["status"]
    return status


def test_a_token_names_its_pod_and_its_audience(cluster: Cluster) -> None:
    pod = cluster.pod("p")
    bind(cluster, "p", cluster.node)
    text = bound(cluster, pod)
    claims = json.loads(base64.urlsafe_b64decode(text.split(".")[1] + "=="))
    assert (claims["aud"], claims["exp"] - claims["iat"]) == ([AUDIENCE], 600)
    assert claims["sub"] == f"system:serviceaccount:{cluster.namespace}:default"
    status = review(cluster, text, AUDIENCE)
    extra = status["user"]["extra"]
    assert (status["authenticated"], status["audiences"]) == (True, [AUDIENCE])
    assert status["user"]["username"] == claims["sub"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
    assert extra["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]
    assert extra["authentication.kubernetes.io/node-name"] == [cluster.node]
    assert "system:serviceaccounts" in status["user"]["groups"]


def test_token_is_valid_only_for_its_audience(cluster: Cluster) -> None:
    text = bound(cluster, cluster.pod("p"))
    assert not review(cluster, text, "none").get("authenticated")
    assert not review(cluster, text).get("authenticated")
    assert not review(cluster, "not.a.token", AUDIENCE).get("authenticated")
    headers = {"Authorization": f"Bearer {text}"}
    assert refused(cluster.http.get(cluster.path("pods"), headers=headers)) == (401, "Unauthorized")


def test_a_token_ends_with_its_pod(cluster: Cluster) -> None:
    pod = cluster.pod("p")
    # A server may remember for ten seconds what it said of a token, and may see the deletion a moment later itself.
    valid, *unseen = [bound(cluster, pod) for _ in range(_UNSEEN_TOKENS)]
    assert review(cluster, valid, AUDIENCE)["authenticated"]
    done(cluster.http.delete(cluster.path("pods", "p"), params={"gracePeriodSeconds": "0"}))
    assert not all(review(cluster, text, AUDIENCE).get("authenticated") for text in unseen)


def test_token_review_requires_a_token(cluster: Cluster) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": ""}}
    assert refused(cluster.http.post(f"{AUTH}/tokenreviews", json=body)) == (400, "BadRequest")


def test_eviction_checks_pod_uid(cluster: Cluster) -> None:
    cluster.pod("p")
    path = f"{cluster.path('pods', 'p')}/eviction"
    options: Json = {"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}}
    assert refused(cluster.http.post(path, json={"metadata": {"name": "p"}, "deleteOptions": options})) == (
        409,
        "Conflict",
    )
    done(cluster.http.post(path, json={"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}}))
    assert cluster.get(cluster.path("pods", "p"))["metadata"]["name"] == "p"


def test_token_request_needs_existing_objects(cluster: Cluster) -> None:
    pod = cluster.pod("p")
    path = f"{cluster.path('serviceaccounts', 'default')}/token"
    other = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "11111111-1111-1111-1111-111111111111"}
    absent = {"kind": "Pod", "apiVersion": "v1", "name": "absent", "uid": pod["metadata"]["uid"]}
    head = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    specs: list[Json] = [{"boundObjectRef": other}, {"boundObjectRef": absent}, {"expirationSeconds": 5}]
    found = [refused(cluster.http.post(path, json={**head, "spec": spec})) for spec in specs]
    assert found == [(409, "Conflict"), (404, "NotFound"), (422, "Invalid")]


def test_api_token_authenticates_its_account(cluster: Cluster) -> None:
    cluster.pod("p")
    headers = {"Authorization": f"Bearer {token(cluster)['status']['token']}"}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = done(cluster.http.post(f"{AUTH}/selfsubjectreviews", json=body, headers=headers))
    assert answer["status"]["userInfo"]["username"] == f"system:serviceaccount:{cluster.namespace}:default"


def test_anonymous_requests_are_rejected(cluster: Cluster) -> None:
    nonsense = cluster.http.get("/api/v1/namespaces", headers={"Authorization": "Bearer nonsense"})
    anonymous = cluster.http.get("/api/v1/namespaces", headers={"Authorization": ""})
    assert (nonsense.status_code, anonymous.status_code in {401, 403}) == (401, True)
    assert [cluster.http.get(path).text for path in ("/healthz", "/livez", "/readyz")] == ["ok"] * 3
    assert cluster.get("/version")["major"] == "1"


def test_the_administrator_may_do_anything(cluster: Cluster) -> None:
    attributes = {"verb": "delete", "resource": "nodes"}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = done(cluster.http.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=body))
    assert answer["status"]["allowed"] is True
