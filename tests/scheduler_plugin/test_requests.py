"""Agents' requests over the wire: every published version is served, and malformed requests get an error."""

from __future__ import annotations

import pytest

from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import FakeCluster
from tests.scheduler_plugin.granted import POD, said, settled
from tests.scheduler_plugin.objects import Obj, token_of, token_text, vm_pod


@pytest.mark.parametrize(
    ("version", "request_part", "answer"),
    [
        (None, {"resources": {"vCPUs": 2, "mem": 8}}, {"permit": {"vCPUs": 2, "mem": 8}}),
        (1, {"resources": {"vCPUs": 2, "mem": 8}}, {"permit": {"vCPUs": 2, "mem": 8}}),
        (2, {"resources": {"vCPUs": 2, "mem": 8}, "metrics": None}, {"permit": {"vCPUs": 2, "mem": 8}}),
        (3, {"resources": {"vCPUs": "1500m", "mem": 8}}, {"permit": {"vCPUs": "1500m", "mem": 8}}),
        (4, {"resources": {"vCPUs": "1500m", "mem": 8}, "lastPermit": None}, {"permit": {"vCPUs": "1500m", "mem": 8}}),
        (5, {"resources": {"vCPUs": "1500m", "mem": 8}}, {"permit": {"vCPUs": "1500m", "mem": 8}}),
        (
            6,
            {"resources": {"vCPUs": "1500m", "mem": "8Gi"}, "computeUnit": {"vCPUs": "250m", "mem": "1Gi"}},
            {"permit": {"vCPUs": "1500m", "mem": "8Gi"}},
        ),
        (
            7,
            {
                "resources": {"vCPUs": "1500m", "mem": "8Gi"},
                "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
                "metrics": {"loadAvg1M": 1.0},
            },
            {"permit": {"vCPUs": "1500m", "mem": "8Gi"}},
        ),
    ],
)
async def test_every_published_version_of_the_protocol_is_served(
    cluster: FakeCluster, clock: FakeClock, version: int | None, request_part: Obj, answer: Obj
) -> None:
    body: Obj = {
        "pod": {"name": "db-pod", "namespace": "default"},
        "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.4, "memoryUsageBytes": 1.0},
        **request_part,
    }
    if version is not None:
        body["protoVersion"] = version
    cluster.tokens["t"] = token_of(POD)
    async with settled(cluster, clock) as scheduler:
        response = await scheduler.client.post(
            "http://agents/", json=body, headers={"Authorization": f"Bearer {token_text('t')}"}
        )
        found = response.json()
        assert response.status_code == 200, found
        assert found["permit"] == answer["permit"]
        named = "resourceUnit" if version is None else "computeUnit"
        assert (named in found) == (version is None or version <= 4)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", "document: input data was truncated"),
        (b'{"protoVersion": 99}', "protoVersion: expected 0 to 7, got 99"),
        (b'{"protoVersion": 4}', "pod: expected a value, the field is missing"),
        (b" " * 70_000, "a request has at most 65536 bytes"),
    ],
)
async def test_malformed_requests_are_told_what_is_wrong(
    cluster: FakeCluster, clock: FakeClock, body: bytes, error: str
) -> None:
    async with settled(cluster, clock) as scheduler:
        headers = {"Authorization": f"Bearer {token_text('t')}"}
        response = await scheduler.client.post("http://agents/", content=body, headers=headers)
        assert (response.status_code, response.json()) == (413 if len(body) > 65536 else 400, {"error": error})


async def test_unknown_pods_are_404_and_zero_is_400(cluster: FakeCluster, clock: FakeClock) -> None:
    async with settled(cluster, clock) as scheduler:
        assert (await scheduler.ask(vm_pod("none"), 1, 1)).status_code == 404
        assert said(await scheduler.ask(POD, 0, 4)) == (400, {"error": "resources.vCPUs: expected more than zero"})
