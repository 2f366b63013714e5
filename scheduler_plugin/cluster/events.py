"""Events: what our programs tell people on an object, shown by ``kubectl describe``.

An Event that must be written only once gets a fixed name: a second create of it is a 409.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import EVENTS, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.pod_database import pod_of
from protocol.virtual_machine import VirtualMachine

CLUSTER_WIDE: Final = "default"
"""The namespace of Events on objects that have none, as kubelets choose it."""

LONGEST_NOTE: Final = 1024
"""Characters: the API server takes no more."""


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The object that an Event is about."""

    resource: Resource
    name: ObjectName
    uid: str


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An Event: ``reason`` in CamelCase, ``note`` for people.

    ``name`` is that of the Event, if it must be written only once however often it is reported; else it is generated.
    """

    about: EventSubject
    reason: str
    note: str
    is_warning: bool = True
    name: str | None = None

    @property
    def path(self) -> str:
        """The collection in which it is created."""
        return EVENTS.path(self.about.name.namespace or CLUSTER_WIDE)


def about_vm(vm: VirtualMachine) -> EventSubject:
    """A VirtualMachine, or the pod that a database is in, as the subject of an Event."""
    pod = pod_of(vm.name)
    return EventSubject(VIRTUAL_MACHINES, vm.name, vm.uid) if pod is None else EventSubject(PODS, pod, vm.uid)


def event_body(event: EventRecord, stamp: str, component: str = "autoscale-scheduler") -> JsonObject:
    """The object to create; ``stamp`` (RFC 3339 with microseconds) makes its name unique, ``component`` reports it."""
    about = event.about
    # A given name makes the Event unique: creating it a second time is a 409, which is not an error. A generated one
    # takes the digits of the time stamp, as names allow no colons.
    name = event.name or f"{about.name.name}.{''.join(filter(str.isdigit, stamp))}"
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        # An Event must be in the namespace of its object, if that has one.
        "metadata": {"name": name, "namespace": about.name.namespace or CLUSTER_WIDE},
        "involvedObject": {
            "apiVersion": about.resource.api_version,
            "kind": about.resource.kind,
            "namespace": about.name.namespace,
            "name": about.name.name,
            "uid": about.uid,
        },
        "reason": event.reason,
        # A longer note would have the whole Event rejected.
        "message": event.note[:LONGEST_NOTE],
        "type": "Warning" if event.is_warning else "Normal",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "reportingComponent": component,
        # The older field of the two, which kubectl describe still prints in its From column.
        "source": {"component": component},
    }
