"""Names and JSON objects of databases: VirtualMachines and opted-in pods (pure).

A pod has containers in its spec, a VirtualMachine has none.
"""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.access_reviews import Scope
from protocol.kubernetes.objects import JsonObject, items, name_of, text
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES, Resource, escaped
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME
from protocol.pod_database import database_of, parse_pod_database, pod_of
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine

OPTED_IN: Final = f"{LABEL_ENABLED}=true,!{LABEL_VM_NAME}"
"""Label selector of pods that may be databases, without pods of VirtualMachines."""


def database_in(written: str) -> ObjectName:
    """The database of ``NAMESPACE/NAME`` or ``NAMESPACE/pod/NAME``.

    >>> database_in("shop/pod/pg-1").name
    'pod/pg-1'
    """
    namespace, _, name = written.partition("/")
    return ObjectName(namespace, name)


def scope_of(database: ObjectName) -> Scope:
    """The permission needed to read about the database.

    >>> scope_of(database_in("shop/pod/pg-1"))
    Scope(namespace='shop', of_pods=True)
    """
    return Scope(database.namespace, of_pods=pod_of(database) is not None)


def is_pod(obj: JsonObject) -> bool:
    """Return True for a pod, False for a VirtualMachine.

    >>> is_pod({"spec": {"containers": [{"name": "postgres"}]}}), is_pod({"spec": {"guest": {}}})
    (True, False)
    """
    return bool(items(obj, "spec", "containers"))


def database_name(obj: JsonObject) -> ObjectName:
    """The database's name.

    >>> vm = {"metadata": {"namespace": "shop", "name": "pg-1"}}
    >>> str(database_name(vm)), str(database_name({**vm, "spec": {"containers": [{}]}}))
    ('shop/pg-1', 'shop/pod/pg-1')
    """
    return database_of(name_of(obj)) if is_pod(obj) else name_of(obj)


def database_object(database: ObjectName) -> tuple[Resource, ObjectName]:
    """Resource and name of the database's object.

    >>> kind, name = database_object(ObjectName("shop", "pod/pg-1"))
    >>> kind.plural, str(name)
    ('pods', 'shop/pg-1')
    """
    pod = pod_of(database)
    return (VIRTUAL_MACHINES, database) if pod is None else (PODS, pod)


def database_url(database: ObjectName) -> str:
    """The name as a URL path; the slash in a pod's name stays.

    >>> database_url(ObjectName("shop", "pod/pg-1")), database_url(ObjectName("..", "db"))
    ('shop/pod/pg-1', '%2E%2E/db')
    """
    return "/".join(map(escaped, str(database).split("/")))


def database_node(obj: JsonObject) -> str:
    """The database's node; empty if none.

    >>> database_node({"spec": {"containers": [{}], "nodeName": "n1"}}), database_node({"status": {"node": "n2"}})
    ('n1', 'n2')
    """
    return text(obj, "spec", "nodeName") if is_pod(obj) else text(obj, "status", "node")


def parse_database(obj: JsonObject) -> VirtualMachine:
    """Decode an opted-in pod or a VirtualMachine. Raises ``InvalidObjectError``.

    >>> metadata = {"annotations": {"autoscaling.neon.tech/bounds": '{"max": {"cpu": 4, "mem": "8Gi"}}'}}
    >>> postgres = {"name": "postgres", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    >>> str(parse_database({"metadata": metadata, "spec": {"containers": [postgres]}}).use)
    '1 cpu, 1Gi'
    """
    return parse_pod_database(obj) if is_pod(obj) else parse_virtual_machine(obj)
