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


def test_of_many_who_take_a_lease_one_gets_it(cluster: Cluster) -> None:
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


def test_a_lease_is_not_replaced_unseen(cluster: Cluster) -> None:
    made, path = lease(cluster), cluster.path("leases", "l", GROUP)
    response = cluster.http.put(path, json={**made, "metadata": {"name": "l"}})
    assert refused(response) == (422, "Invalid")
    assert [cause["field"] for cause in response.json()["details"]["causes"]] == ["metadata.resourceVersion"]


def test_a_lease_that_was_deleted_is_not_renewed(cluster: Cluster) -> None:
    made, path = lease(cluster), cluster.path("leases", "l", GROUP)
    done(cluster.http.delete(path))
    assert refused(cluster.http.put(path, json=made)) == (409, "Conflict")
    again = lease(cluster)
    assert refused(cluster.http.put(path, json=made)) == (409, "Conflict")
    assert cluster.get(path) == again


def test_a_lease_can_be_made_by_an_update(cluster: Cluster) -> None:
    path = cluster.path("leases", "l", GROUP)
    response = cluster.http.put(path, json={"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    assert (response.status_code, cluster.get(path)) == (201, response.json())


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z", "never"])
def test_the_times_of_a_lease_have_microseconds(cluster: Cluster, time: str) -> None:
    body = {"metadata": {"name": "l"}, "spec": {"renewTime": time}}
    assert refused(cluster.http.post(cluster.path("leases", "", GROUP), json=body)) == (400, "BadRequest")


def test_a_lease_lasts_for_some_time(cluster: Cluster) -> None:
    body = {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}
    assert refused(cluster.http.post(cluster.path("leases", "", GROUP), json=body)) == (422, "Invalid")
