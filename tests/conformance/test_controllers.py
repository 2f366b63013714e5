"""Garbage collection after deletions. In a real cluster kube-controller-manager does this."""

from __future__ import annotations

from tests.conformance.cluster import CRDS, Cluster, Json, definition, done


def owned_by(owner: Json, block: bool = False) -> list[Json]:
    meta = owner["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]}
    return [{**reference, "blockOwnerDeletion": block}]


def dependent(cluster: Cluster, name: str, owners: list[Json], **more: object) -> Json:
    return cluster.create(cluster.path("configmaps"), {"metadata": {"name": name, "ownerReferences": owners, **more}})


def delete(cluster: Cluster, name: str, policy: str) -> None:
    done(cluster.http.request("DELETE", cluster.path("configmaps", name), json={"propagationPolicy": policy}))


def test_dependents_follow_their_owner(cluster: Cluster) -> None:
    child = dependent(cluster, "child", owned_by(cluster.config_map("owner")))
    dependent(cluster, "grandchild", owned_by(child))
    delete(cluster, "owner", "Background")
    cluster.until_gone(cluster.path("configmaps"), "grandchild")
    assert cluster.http.get(cluster.path("configmaps", "child")).status_code == 404


def test_dependent_needs_one_live_owner(cluster: Cluster) -> None:
    first, second = cluster.config_map("first"), cluster.config_map("second")
    dependent(cluster, "child", owned_by(first) + owned_by(second))
    start = cluster.get(cluster.path("configmaps"))["metadata"]["resourceVersion"]
    delete(cluster, "first", "Background")
    with cluster.watch(
        cluster.path("configmaps"), resourceVersion=start, fieldSelector="metadata.name=child"
    ) as events:
        left = next(events)
    assert left["type"] == "MODIFIED"
    assert [one["name"] for one in left["object"]["metadata"]["ownerReferences"]] == ["second"]


def test_an_owner_can_wait_for_its_dependents(cluster: Cluster) -> None:
    owner = cluster.config_map("owner")
    dependent(cluster, "child", owned_by(owner, block=True), finalizers=["x.test/hold"])
    delete(cluster, "owner", "Foreground")
    waiting = cluster.get(cluster.path("configmaps", "owner"))
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    start = cluster.get(cluster.path("configmaps"))
    ending = next(one for one in start["items"] if one["metadata"]["name"] == "child")
    if "deletionTimestamp" not in ending["metadata"]:
        version = start["metadata"]["resourceVersion"]
        with cluster.watch(
            cluster.path("configmaps"), resourceVersion=version, fieldSelector="metadata.name=child"
        ) as events:
            next(event for event in events if "deletionTimestamp" in event["object"]["metadata"])
    done(cluster.patch(cluster.path("configmaps", "child"), {"metadata": {"finalizers": None}}))
    cluster.until_gone(cluster.path("configmaps"), "owner")


def test_orphaned_dependents_stay(cluster: Cluster) -> None:
    dependent(cluster, "child", owned_by(cluster.config_map("owner")))
    delete(cluster, "owner", "Orphan")
    cluster.until_gone(cluster.path("configmaps"), "owner")
    assert "ownerReferences" not in cluster.get(cluster.path("configmaps", "child"))["metadata"]


def test_dependent_of_missing_owner_is_deleted(cluster: Cluster) -> None:
    owner = cluster.config_map("owner")
    done(cluster.http.delete(cluster.path("configmaps", "owner")))
    dependent(cluster, "late", owned_by(owner))
    cluster.until_gone(cluster.path("configmaps"), "late")


def test_deleted_namespace_deletes_its_contents(cluster: Cluster) -> None:
    made = cluster.create("/api/v1/namespaces", {"metadata": {"generateName": "doomed-"}})
    name = made["metadata"]["name"]
    held = {"metadata": {"name": "held", "finalizers": ["x.test/hold"]}}
    cluster.create(f"/api/v1/namespaces/{name}/configmaps", held)
    done(cluster.http.delete(f"/api/v1/namespaces/{name}"))
    ending = cluster.get(f"/api/v1/namespaces/{name}")
    response = cluster.http.post(f"/api/v1/namespaces/{name}/configmaps", json={"metadata": {"name": "late"}})
    done(cluster.patch(f"/api/v1/namespaces/{name}/configmaps/held", {"metadata": {"finalizers": None}}))
    cluster.until_gone("/api/v1/namespaces", name)
    assert ending["status"]["phase"] == "Terminating"
    assert response.status_code == 403
    assert "because it is being terminated" in response.json()["message"]


def test_namespace_gets_default_service_account(cluster: Cluster) -> None:
    path = cluster.path("serviceaccounts")
    with cluster.watch(path, fieldSelector="metadata.name=default") as events:
        assert next(events)["type"] == "ADDED"


def test_deleted_crd_deletes_its_objects(cluster: Cluster) -> None:
    given = definition()
    with cluster.defined(given) as path:
        head = {"apiVersion": "/".join(path.split("/")[2:4]), "kind": "Thing"}
        cluster.create(path, {**head, "metadata": {"name": "a"}})
        done(cluster.http.delete(f"{CRDS}/{given['metadata']['name']}"))
        cluster.until_gone(CRDS, given["metadata"]["name"])
        assert cluster.http.get(path).status_code == 404
