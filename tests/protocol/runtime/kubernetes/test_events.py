"""The Event that every program writes: about what, in which namespace, under which name."""

from __future__ import annotations

from protocol.kubernetes.resources import NODES, PODS
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.events import LONGEST_NOTE, EventRecord, EventSubject, event_body

POD = EventSubject(PODS, ObjectName("default", "pg-1"), "u-1")
STAMP = "2026-01-01T00:00:00.250000Z"


def test_event_body() -> None:
    event = EventRecord(POD, "NotResized", "no bounds")
    assert event.path == "/api/v1/namespaces/default/events"
    assert event_body(event, STAMP, "autoscaler-agent") == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "generateName": "pg-1."},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "pg-1", "uid": "u-1"},
        "reason": "NotResized",
        "message": "no bounds",
        "type": "Warning",
        "firstTimestamp": STAMP,
        "lastTimestamp": STAMP,
        "count": 1,
        "reportingComponent": "autoscaler-agent",
        "source": {"component": "autoscaler-agent"},
    }


def test_named_event_is_written_once() -> None:
    """A fixed name makes the second create a 409, however often the same thing is reported."""
    event = EventRecord(POD, "Scaled", "to 3 replicas", is_warning=False, name="pg-1.scaled")
    body = event_body(event, STAMP, "autoscale-groups")
    assert (body["metadata"], body["type"]) == ({"namespace": "default", "name": "pg-1.scaled"}, "Normal")


def test_event_on_cluster_wide_object() -> None:
    event = EventRecord(EventSubject(NODES, ObjectName("", "node-1"), "u-2"), "Unreadable", "n" * 2000)
    body = event_body(event, STAMP, "autoscale-scheduler")
    about = {"apiVersion": "v1", "kind": "Node", "namespace": "", "name": "node-1", "uid": "u-2"}
    assert (event.path, body["involvedObject"]) == ("/api/v1/namespaces/default/events", about)
    assert body["message"] == "n" * LONGEST_NOTE, "the API server refuses a longer one"


def test_note_steers_no_terminal() -> None:
    event = EventRecord(POD, "NotResized", "expected one named \x1b[2J\x9b31m\u202ex\r, got\npostgres")
    note = event_body(event, STAMP, "autoscale-scheduler")["message"]
    assert note == "expected one named \ufffd[2J\ufffd31m\ufffdx\ufffd, got\npostgres"
