"""Kubernetes Events, which ``kubectl describe`` shows for their object."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import EVENTS, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.pod_database import pod_of
from protocol.runtime.json_log import STEERING
from protocol.virtual_machine import VirtualMachine

CLUSTER_WIDE: Final = "default"
"""The namespace of Events about cluster-scoped objects, as kubelets write them."""

LONGEST_NOTE: Final = 1024
"""Maximum characters that the API server accepts."""

_STEERING: Final = re.compile(f"[\\x00-\\x09\\x0b-\\x1f{STEERING}]")
"""Control characters except line breaks."""


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The object that an Event is about."""

    resource: Resource
    name: ObjectName
    uid: str


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An Event: ``reason`` in CamelCase, ``note`` as a sentence.

    Set ``name`` if the Event must be written only once: creating it again is a 409. Without one, the API server
    generates a name.
    """

    about: EventSubject
    reason: str
    note: str
    is_warning: bool = True
    name: str | None = None

    @property
    def namespace(self) -> str:
        """The namespace of the Event: its object's, if any."""
        return self.about.name.namespace or CLUSTER_WIDE

    @property
    def path(self) -> str:
        """The path of the collection in which it is created."""
        return EVENTS.path(self.namespace)


def about_vm(vm: VirtualMachine) -> EventSubject:
    """The VirtualMachine, or for a database in a pod the pod, as the subject of an Event."""
    pod = pod_of(vm.name)
    return EventSubject(VIRTUAL_MACHINES, vm.name, vm.uid) if pod is None else EventSubject(PODS, pod, vm.uid)


def event_body(event: EventRecord, stamp: str, component: str) -> Json:
    """The object to create: ``component`` reports the Event at ``stamp`` (RFC 3339).

    >>> about = EventSubject(PODS, ObjectName("default", "pg-1"), "u-1")
    >>> body = event_body(EventRecord(about, "NotResized", "no bounds"), "2026-01-01T00:00:00Z", "autoscale-scheduler")
    >>> body["metadata"], body["involvedObject"]["kind"], body["type"]
    ({'namespace': 'default', 'generateName': 'pg-1.'}, 'Pod', 'Warning')
    """
    about = event.about
    name = {"name": event.name} if event.name else {"generateName": f"{about.name.name}."}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": event.namespace, **name},
        "involvedObject": {
            "apiVersion": about.resource.api_version,
            "kind": about.resource.kind,
            "namespace": about.name.namespace,
            "name": about.name.name,
            "uid": about.uid,
        },
        "reason": event.reason,
        # A longer note would make the API server reject the Event. It may contain user input.
        "message": _STEERING.sub("\ufffd", event.note[:LONGEST_NOTE]),
        "type": "Warning" if event.is_warning else "Normal",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "reportingComponent": component,
        # The older of the two fields, which kubectl describe still prints in its From column.
        "source": {"component": component},
    }
