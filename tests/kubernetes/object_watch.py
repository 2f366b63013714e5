"""Waits for an object of a real API server by watching it, so that what is waited for is seen at once."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx

from protocol.kubernetes.resources import Resource
from tests.kubernetes.looks import client_of_people
from tests.kubernetes.real_kubernetes import PATIENCE, NotYetError, RealKubernetes

Object = dict[str, Any]


@contextmanager
def asking(cluster: RealKubernetes) -> Iterator[httpx.Client]:
    """A client with users' permissions, because a kubectl process per query would dominate the run time."""
    with client_of_people(cluster.kubeconfig, timeout=10) as client:
        yield client


def watched(  # noqa: PLR0917 - an object is named by three, and a wait has three of its own
    api: httpx.Client, kind: Resource, name: str, holds: Callable[[Object], bool], what: str, seconds: float = PATIENCE
) -> Object:
    """The object of the default namespace, once ``holds`` says so of it; one that is not there is ``{}`` to it.

    Raises ``NotYetError`` with the object's status as it is instead.
    """
    deadline, last = time.monotonic() + seconds, {}
    for last in _states(api, kind, name, deadline):
        if holds(last):
            return last
    raise NotYetError(f"{what}: not within {seconds:g} s; {kind.kind} {name}: {json.dumps(last.get('status'))}")


def _states(api: httpx.Client, kind: Resource, name: str, deadline: float) -> Iterator[Object]:
    """The present object, and its states after each change until the deadline."""
    path, named = kind.path("default"), {"fieldSelector": f"metadata.name={name}"}
    found = api.get(path, params=named).raise_for_status().json()
    yield found["items"][0] if found["items"] else {}
    since = found["metadata"]["resourceVersion"]
    while (left := deadline - time.monotonic()) > 0:
        asked = {**named, "watch": "true", "resourceVersion": since, "timeoutSeconds": str(math.ceil(left))}
        with api.stream("GET", path, params=asked, timeout=left + 10.0) as events:
            for event in map(json.loads, events.raise_for_status().iter_lines()):
                assert event["type"] != "ERROR", event["object"]
                since = event["object"]["metadata"]["resourceVersion"]
                yield {} if event["type"] == "DELETED" else event["object"]
