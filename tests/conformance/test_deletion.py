"""Deletion: at once, after finalizers, after a grace period, and only where it is meant."""

from __future__ import annotations

from tests.conformance.cluster import Cluster, done, refused


def test_delete_returns_status_of_object(cluster: Cluster) -> None:
    made = cluster.config_map("a")
    answer = done(cluster.http.delete(cluster.path("configmaps", "a")))
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert (answer["details"]["name"], answer["details"]["uid"]) == ("a", made["metadata"]["uid"])
    assert refused(cluster.http.delete(cluster.path("configmaps", "a"))) == (404, "NotFound")


def test_finalizers_delay_deletion(cluster: Cluster) -> None:
    cluster.create(cluster.path("configmaps"), {"metadata": {"name": "a", "finalizers": ["x.test/hold"]}})
    path = cluster.path("configmaps", "a")
    start = cluster.get(path)["metadata"]["resourceVersion"]
    done(cluster.http.delete(path))
    done(cluster.http.delete(path))
    held = cluster.get(path)
    done(cluster.patch(path, {"metadata": {"finalizers": None}}))
    assert held["metadata"]["deletionTimestamp"]
    assert cluster.http.get(path).status_code == 404
    with cluster.watch(cluster.path("configmaps"), resourceVersion=start, fieldSelector="metadata.name=a") as events:
        assert [next(events)["type"] for _ in range(2)] == ["MODIFIED", "DELETED"]


def test_terminating_object_cannot_be_recreated(cluster: Cluster) -> None:
    body = {"metadata": {"name": "a", "finalizers": ["x.test/hold"]}}
    cluster.create(cluster.path("configmaps"), body)
    done(cluster.http.delete(cluster.path("configmaps", "a")))
    assert refused(cluster.http.post(cluster.path("configmaps"), json=body)) == (409, "AlreadyExists")
    done(cluster.patch(cluster.path("configmaps", "a"), {"metadata": {"finalizers": []}}))


def test_delete_checks_preconditions(cluster: Cluster) -> None:
    made = cluster.config_map("a")
    path = cluster.path("configmaps", "a")
    wrong = ({"uid": "11111111-1111-1111-1111-111111111111"}, {"resourceVersion": "1"})
    for preconditions in wrong:
        response = cluster.http.request("DELETE", path, json={"preconditions": preconditions})
        assert refused(response) == (409, "Conflict")
    right = {key: made["metadata"][key] for key in ("uid", "resourceVersion")}
    done(cluster.http.request("DELETE", path, json={"preconditions": right}))


def test_unscheduled_pod_is_deleted_at_once(cluster: Cluster) -> None:
    cluster.pod("p")
    done(cluster.http.delete(cluster.path("pods", "p")))
    assert cluster.http.get(cluster.path("pods", "p")).status_code == 404


def test_scheduled_pod_is_removed_by_its_kubelet(cluster: Cluster) -> None:
    cluster.pod("p")
    path = cluster.path("pods", "p")
    done(cluster.http.post(f"{path}/binding", json={"metadata": {"name": "p"}, "target": {"name": cluster.node}}))
    done(cluster.http.delete(path, params={"gracePeriodSeconds": "20"}))
    ending = cluster.get(path)["metadata"]
    done(cluster.http.delete(path, params={"gracePeriodSeconds": "0"}))
    assert (ending["deletionGracePeriodSeconds"], "deletionTimestamp" in ending) == (20, True)
    assert cluster.http.get(path).status_code == 404


def test_finished_pod_is_deleted_at_once(cluster: Cluster) -> None:
    cluster.pod("p")
    path = cluster.path("pods", "p")
    done(cluster.http.post(f"{path}/binding", json={"metadata": {"name": "p"}, "target": {"name": cluster.node}}))
    done(cluster.patch(f"{path}/status", {"status": {"phase": "Succeeded"}}))
    done(cluster.http.delete(path))
    assert cluster.http.get(path).status_code == 404
