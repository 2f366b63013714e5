"""Conversations of the original's agent, scheduler (v0.49.1) and monitor as they were on the wire (B.1, B.8, B.11).

``tests/kubernetes/neon`` holds such conversations with the programs themselves.
"""

from __future__ import annotations

import json

import pytest

from protocol.codec import PluginResponseView, decode_request, decode_response, encode_request, encode_response
from protocol.guest.monitor_messages import (
    DownscaleResult,
    FromMonitor,
    HealthCheck,
    UpscaleConfirmation,
    UpscaleRequest,
    read_from_monitor,
)
from protocol.messages import AgentRequest, Metrics, ObjectName, PluginResponse
from protocol.units import Bytes, ComputeUnit, Resources
from protocol.versions import ProtocolVersion

V5 = ProtocolVersion.V5_0
SLOT = Bytes.parse("1Gi")
UNIT = ComputeUnit.parse("250m", "1Gi")
POD = ObjectName("default", "db-r5rh7")

BEGINS = """{"protoVersion":7,"pod":{"name":"db-r5rh7","namespace":"default"},
"computeUnit":{"vCPUs":"250m","mem":"1Gi"},"resources":{"vCPUs":1,"mem":"2Gi"},"lastPermit":null,"metrics":{"loadAvg1M":0.1}}"""
GROWS = """{"protoVersion":7,"pod":{"name":"db-r5rh7","namespace":"default"},
"computeUnit":{"vCPUs":"250m","mem":"1Gi"},"resources":{"vCPUs":"3250m","mem":"8Gi"},"lastPermit":{"vCPUs":1,"mem":"2Gi"},"metrics":{"loadAvg1M":3}}"""
WITHOUT_METRICS = """{"protoVersion":7,"pod":{"name":"db-r5rh7","namespace":"default"},
"computeUnit":{"vCPUs":"250m","mem":"1Gi"},"resources":{"vCPUs":1,"mem":"2Gi"},"lastPermit":null,"metrics":null}"""


def asked(cpu: object, mem: str, last: Resources | None, load: float | None) -> AgentRequest:
    metrics = None if load is None else Metrics(load)
    return AgentRequest(POD, Resources.parse(cpu, mem), last_permit=last, compute_unit=UNIT, metrics=metrics)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (BEGINS, asked(1, "2Gi", None, 0.1)),
        (GROWS, asked("3250m", "8Gi", Resources.parse(1, "2Gi"), 3.0)),
        (WITHOUT_METRICS, asked(1, "2Gi", None, None)),
    ],
)
def test_what_its_agent_asks_is_understood(said: str, meant: AgentRequest) -> None:
    request = decode_request(said.encode())
    assert (request.version, request.pod, request.resolve(SLOT)) == (V5, POD, meant)


def test_original_agent_reads_our_answer() -> None:
    """It reads ``permit`` and a ``migrate`` that is null or an object, and nothing else."""
    answer = PluginResponse(Resources.parse("3250m", "8Gi"), UNIT)
    assert json.loads(encode_response(V5, answer, SLOT)) == {
        "permit": {"vCPUs": "3250m", "mem": "8Gi"},
        "migrate": None,
    }


@pytest.mark.parametrize("said", [BEGINS, GROWS, WITHOUT_METRICS])
def test_our_requests_match_original_agents(said: str) -> None:
    """All that it reads, by name and value; a number and the same number as a text are the same to it."""
    meant = decode_request(said.encode()).resolve(SLOT)
    assert json.loads(encode_request(V5, meant, SLOT)) == json.loads(said)


def test_what_its_scheduler_answers_is_understood() -> None:
    """It leaves ``migrate`` out and says no compute unit."""
    said = b'{"permit":{"vCPUs":"3250m","mem":"8Gi"}}'
    assert decode_response(V5, said, SLOT) == PluginResponseView(Resources.parse("3250m", "8Gi"), None, migrate=False)


REFUSAL = (
    "calculated memory threshold too low:"
    " 785.4 MiB (new threshold) < 3814.6973 (current usage) + 100 (downscale buffer)"
)
AGREEMENT = "set cgroup memory threshold from 6878.2 MiB to 4267 MiB, of new total 5020 MiB"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ('{"type":"UpscaleConfirmation","id":2}', UpscaleConfirmation(2)),
        (f'{{"type":"DownscaleResult","Ok":false,"Status":"{REFUSAL}","id":4}}', DownscaleResult(4, False, REFUSAL)),
        (f'{{"type":"DownscaleResult","Ok":true,"Status":"{AGREEMENT}","id":6}}', DownscaleResult(6, True, AGREEMENT)),
        ('{"type":"HealthCheck","id":8}', HealthCheck(8)),
        ('{"type":"UpscaleRequest","id":3}', UpscaleRequest(3)),
    ],
)
def test_what_its_monitor_says_is_understood(said: str, meant: FromMonitor) -> None:
    assert read_from_monitor(said) == meant
