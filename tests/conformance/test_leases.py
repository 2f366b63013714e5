"""Leases: of two who renew one at a time, one does; and what a lease may say."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.cluster import Cluster, Json, done, refused

GROUP = "coordination.k8s.io/v1"
THEN = "2026-01-01T00:00:00.000000Z"


def lease(cluster: Cluster, **spec: object) -> Json:
    given = {"holderIdentity": "none", "leaseDurationSeconds": 15, "renewTime": THEN, **spec}
    return cluster.create(cluster.path("leases", "", GROUP), {"metadata": {"name": "l"}, "spec": given})


def test_concurrent_lease_updates_have_one_winner(cluster: Cluster) -> None:
    free, path = lease(cluster), cluster.path("leases", "l", GROUP)
    names = [f"candidate-{number}" for number in range(6)]

    def take(name: str) -> int:
        taken = {**free, "spec": {**free["spec"], "holderIdentity": name}}
        return cluster.http.put(path, json=taken).status_code

    with ThreadPoolExecutor(len(names)) as pool:
        codes = dict(zip(names, pool.map(take, names), strict=True))
    winners = [name for name, code in codes.items() if code == 200]
    assert sorted(codes.values()) == [200, *[409] * (len(names) - 1)]
    assert [cluster.get(path)["spec"]["holderIdentity"]] == winners


def test_lease_update_requires_revision(cluster: Cluster) -> None:
    made, path = lease(cluster), cluster.path("leases", "l", GROUP)
    response = cluster.http.put(path, json={**made, "metadata": {"name": "l"}})
    assert refused(response) == (422, "Invalid")
    assert [cause["field"] for cause in response.json()["details"]["causes"]] == ["metadata.resourceVersion"]


def test_deleted_lease_is_not_renewed(cluster: Cluster) -> None:
    made, path = lease(cluster), cluster.path("leases", "l", GROUP)
    done(cluster.http.delete(path))
    assert refused(cluster.http.put(path, json=made)) == (409, "Conflict")
    again = lease(cluster)
    assert refused(cluster.http.put(path, json=made)) == (409, "Conflict")
    assert cluster.get(path) == again


def test_lease_update_creates_missing_lease(cluster: Cluster) -> None:
    path = cluster.path("leases", "l", GROUP)
    response = cluster.http.put(path, json={"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    assert (response.status_code, cluster.get(path)) == (201, response.json())


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z", "never"])
def test_lease_times_have_microseconds(cluster: Cluster, time: str) -> None:
    body = {"metadata": {"name": "l"}, "spec": {"renewTime": time}}
    assert refused(cluster.http.post(cluster.path("leases", "", GROUP), json=body)) == (400, "BadRequest")


def test_lease_duration_must_be_positive(cluster: Cluster) -> None:
    body = {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}
    assert refused(cluster.http.post(cluster.path("leases", "", GROUP), json=body)) == (422, "Invalid")
