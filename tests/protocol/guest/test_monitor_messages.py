"""The monitor protocol on the wire: what NeonVM's monitor sends and expects, letter by letter, and what is refused."""

from __future__ import annotations

import json

import pytest

from protocol.guest.monitor_messages import (
    CheckHealth,
    DownscaleRequest,
    DownscaleResult,
    FromMonitor,
    HealthCheck,
    InternalError,
    InvalidMessage,
    LoadReport,
    MalformedMonitorMessageError,
    NotUnderstood,
    ToMonitor,
    UnknownMessage,
    UpscaleConfirmation,
    UpscaleNotification,
    UpscaleRequest,
    read_from_monitor,
    read_greeting,
    write_greeting,
    write_to_monitor,
)
from protocol.units import Resources

REPORT = (
    '{"type":"LoadReport","id":3,"cause":"cpu","span":0.06,"cpuBusy":0.98,"cpuStall":0.9,'
    '"runnable":5,"processes":12,"newProcesses":4,"active":3,"waiting":1}'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type":"UpscaleRequest","id":1}', UpscaleRequest(1)),
        ('{"type":"UpscaleConfirmation","id":2}', UpscaleConfirmation(2)),
        ('{"type":"DownscaleResult","Ok":true,"Status":"","id":4}', DownscaleResult(4, ok=True)),
        ('{"type":"DownscaleResult","id":4,"Ok":false,"Status":"no"}', DownscaleResult(4, ok=False, status="no")),
        ('{"type":"DownscaleResult","id":4,"ok":true,"status":"yes"}', DownscaleResult(4, ok=True, status="yes")),
        ('{"type":"DownscaleResult","id":4,"content":{"Ok":true,"id":9}}', DownscaleResult(4, ok=True)),
        ('{"type":"HealthCheck","id":6,"content":{}}', HealthCheck(6)),
        ('{"type":"HealthCheck","id":6}', HealthCheck(6)),
        ('{"type":"InvalidMessage","error":"what?","id":8}', InvalidMessage(8, "what?")),
        ('{"type":"InternalError","error":"cgroup","id":8}', InternalError(8, "cgroup")),
        (REPORT, LoadReport(3, "cpu", 0.06, 0.98, 0.9, 5, 12, 4, 3, 1)),
        (REPORT.replace(',"active":3,"waiting":1', ""), LoadReport(3, "cpu", 0.06, 0.98, 0.9, 5, 12, 4)),
        ('{"type":"Novelty","id":5,"more":[1]}', UnknownMessage(5, "Novelty")),
    ],
)
def test_every_message_of_a_monitor_is_read(text: str, message: FromMonitor) -> None:
    assert read_from_monitor(text) == message
    assert read_from_monitor(text.encode()) == message


@pytest.mark.parametrize(
    ("message", "kind", "content"),
    [
        (DownscaleRequest(Resources.parse(2, "4Gi")), "DownscaleRequest", {"target": {"cpu": 2.0, "mem": 4 * 1024**3}}),
        (
            UpscaleNotification(Resources.parse("250m", "1Gi")),
            "UpscaleNotification",
            {"granted": {"cpu": 0.25, "mem": 1024**3}},
        ),
        (CheckHealth(), "HealthCheck", {}),
        (NotUnderstood(6, "what?"), "InvalidMessage", {"error": "what?"}),
    ],
)
def test_agent_messages_have_type_and_id(message: ToMonitor, kind: str, content: object) -> None:
    assert json.loads(write_to_monitor(message, 6)) == {"content": content, "type": kind, "id": 6}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "document: input data was truncated"),
        ("[]", "document: expected object, got array"),
        ('{"type":"HealthCheck"}', "id: expected a value, the field is missing"),
        ('{"type":"HealthCheck","id":-1}', "id: expected int >= 0"),
        ('{"type":"DownscaleResult","id":4,"Ok":1,"Status":""}', "Ok: expected bool, got int"),
        (REPORT.replace("0.06", "0"), "span: expected float > 0.0"),
        (REPORT.replace("0.9,", "1.5,"), "cpuStall: expected float <= 1.0"),
        (REPORT.replace('"runnable":5', '"runnable":1e300'), "runnable: expected int, got float"),
        ("[" * 5000, "document: expected object, got array"),
        (b'{"type":"\xff","id":1}', "document: "),
    ],
)
def test_malformed_message_names_field(text: str | bytes, complaint: str) -> None:
    with pytest.raises(MalformedMonitorMessageError, match="^" + complaint.replace("[", r"\[")):
        read_from_monitor(text)


def test_agent_negotiates_down_to_old_monitor() -> None:
    assert json.loads(write_greeting()) == {"min": 1, "max": 2}
    assert [read_greeting(f'{{"version":{version}}}') for version in (1, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"error":"no overlap"}', "error: the monitor refuses: 'no overlap'"),
        ('{"version":3}', "version: expected 1 to 2, got 3"),
        ("{}", "version: expected 1 to 2, got 0"),
        ('{"version":"1"}', "version: expected int, got str"),
    ],
)
def test_incompatible_greeting_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(MalformedMonitorMessageError) as caught:
        read_greeting(text)
    assert str(caught.value) == complaint
