"""The scheduler's client over HTTP: what is sent, and whose fault every failure is."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import httpx2 as httpx
import pytest
from msgspec.structs import replace

from agent.adapters.scheduler_client import LARGEST, HttpScheduler
from agent.adapters.token import no_token, read_token
from agent.core.events import Fault
from agent.ports import PortError, TokenSource
from protocol.codec import PluginResponseView
from protocol.messages import AgentRequest, Metrics, ObjectName
from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources, Seconds
from protocol.versions import ProtocolVersion
from tests.agent.adapters.answering import client, silent

GIB = 1024**3
SLOT = Bytes(GIB)
REQUEST = AgentRequest(
    ObjectName("default", "vm-1-pod"),
    Resources(MilliCpu(500), Bytes(2 * GIB)),
    last_permit=Resources(MilliCpu(250), SLOT),
    metrics=Metrics(0.5, 0.25, Bytes(1000)),
    sequence=7,
)
GOOD = {"permit": {"vCPUs": "500m", "mem": 2}, "migrate": None, "computeUnit": {"vCPUs": "250m", "mem": 1}}


def scheduler(http: httpx.AsyncClient, identity: TokenSource | None = None) -> HttpScheduler:
    return HttpScheduler(http, "http://scheduler:10299/", identity or no_token, Seconds(2.0))


async def failure(answer: httpx.Response) -> PortError:
    with pytest.raises(PortError) as caught:
        await scheduler(client(lambda _: answer)).ask(REQUEST, SLOT)
    return caught.value


async def test_sends_token_and_reads_permit(tmp_path: Path) -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json=GOOD)

    token = tmp_path / "token"
    token.write_text("secret\n")
    permit = await scheduler(client(answer), partial(read_token, token)).ask(REQUEST, SLOT)
    unit = ComputeUnit(MilliCpu(250), SLOT)
    assert permit == PluginResponseView(Resources(MilliCpu(500), Bytes(2 * GIB)), unit, migrate=False)
    assert (sent[0].method, str(sent[0].url)) == ("POST", "http://scheduler:10299/")
    assert sent[0].headers["Authorization"] == "Bearer secret"
    body = json.loads(sent[0].content)
    assert (body["protoVersion"], body["resources"], body["lastPermit"], body["sequence"]) == (
        4,
        {"vCPUs": "500m", "mem": 2},
        {"vCPUs": "250m", "mem": 1},
        7,
    )


async def test_speaks_v5_with_own_compute_unit_to_original() -> None:
    """The wire format of v0.49.1: memory in bytes, one load average, and no compute unit in the response (B.11)."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"permit": {"vCPUs": "500m", "mem": "2Gi"}, "migrate": None})

    unit = ComputeUnit(MilliCpu(250), SLOT)
    asked = HttpScheduler(client(answer), "http://scheduler:10299/", no_token, Seconds(2.0), ProtocolVersion.V5_0).ask(
        replace(REQUEST, compute_unit=unit), SLOT
    )
    assert await asked == PluginResponseView(REQUEST.resources, None, migrate=False)
    assert "Authorization" not in sent[0].headers
    assert json.loads(sent[0].content) == {
        "protoVersion": 7,
        "pod": {"namespace": "default", "name": "vm-1-pod"},
        "resources": {"vCPUs": "500m", "mem": "2Gi"},
        "lastPermit": {"vCPUs": "250m", "mem": "1Gi"},
        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
        "metrics": {"loadAvg1M": 0.5},
        "sequence": 7,
    }


async def test_original_scheduler_refuses_other_versions() -> None:
    error = await failure(httpx.Response(400, text="protocol version mismatch: need v5.0 but got v2.1"))
    assert error.fault == Fault.AGENT
    assert error.reason.endswith("protocol version mismatch: need v5.0 but got v2.1")


@pytest.mark.parametrize(
    ("status", "fault", "what"),
    [
        (400, Fault.AGENT, "cannot decode this agent's request"),
        (401, Fault.AGENT, "rejected this agent's token"),
        (403, Fault.AGENT, "does not authorize this agent for this pod"),
        (404, Fault.SCHEDULER, "does not know this pod"),
        (409, Fault.AGENT, "serves another agent of this database"),
        (500, Fault.SCHEDULER, "the scheduler returned 500"),
    ],
)
async def test_a_status_says_whose_fault_it_is(status: int, fault: Fault, what: str) -> None:
    error = await failure(httpx.Response(status, json={"error": "resources.mem: too much"}))
    assert (error.fault, error.retry_after) == (fault, None)
    assert what in error.reason
    assert error.reason.endswith(": resources.mem: too much")


async def test_unready_scheduler_sets_retry_after() -> None:
    error = await failure(httpx.Response(503, text="rebuilding", headers={"Retry-After": "2"}))
    assert (error.fault, error.reason, error.retry_after) == (
        Fault.SCHEDULER,
        "the scheduler is not ready: rebuilding",
        2.0,
    )
    later = await failure(httpx.Response(503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    assert later.retry_after is None


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"{}", json.dumps({**GOOD, "computeUnit": {"vCPUs": 0, "mem": 1}}).encode(), b'{"permit": 3}'],
)
async def test_malformed_answer_blames_scheduler(body: bytes) -> None:
    error = await failure(httpx.Response(200, content=body))
    assert error.fault == Fault.SCHEDULER
    assert error.reason.startswith("cannot decode the scheduler's response: ")


async def test_an_answer_without_an_end_is_not_believed() -> None:
    error = await failure(httpx.Response(200, content=b" " * (LARGEST + 1)))
    assert error.reason == f"the scheduler's response exceeds {LARGEST} bytes"


async def test_silence_is_the_networks_fault() -> None:
    with pytest.raises(PortError, match="did not respond within 2 s") as caught:
        await scheduler(silent()).ask(REQUEST, SLOT)
    assert caught.value.fault == Fault.NETWORK


async def test_missing_token_blames_agent_and_sends_nothing(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="cannot read") as caught:
        await scheduler(silent(), partial(read_token, tmp_path / "none")).ask(REQUEST, SLOT)
    assert caught.value.fault == Fault.AGENT
