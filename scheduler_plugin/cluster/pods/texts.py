"""Pods from their JSON text: a line of a watch, and what kube-scheduler sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

import msgspec

from protocol.field_errors import field_message
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches.kinds import Watched
from scheduler_plugin.cluster.pods.reading import pod_facts
from scheduler_plugin.cluster.pods.requests import other_requests
from scheduler_plugin.cluster.pods.shapes import MOST_PARTS, Container, Pod, PodMetadata, PodSpec
from scheduler_plugin.cluster.scheduling_fields import placed_traits, prefers
from scheduler_plugin.cluster.scheduling_shapes import Affinity, PodToleration, Port, PreferringSpec, Volume
from scheduler_plugin.ledger.facts import PodFacts


class _WatchedMetadata(PodMetadata, frozen=True):
    deletionTimestamp: str | None = None  # noqa: N815 - the name in the API


class _WatchedContainer(Container, frozen=True):
    ports: list[Port] | None = None


class _WatchedSpec(PodSpec, frozen=True):
    containers: Annotated[list[_WatchedContainer], msgspec.Meta(max_length=MOST_PARTS)] = msgspec.field(  # type: ignore[assignment]  # read only
        default_factory=list
    )
    volumes: list[Volume] | None = None
    tolerations: list[PodToleration] | None = None
    affinity: Affinity | None = None


class _WatchedPod(Pod, frozen=True):
    metadata: _WatchedMetadata
    spec: _WatchedSpec


class _WatchedEvent(msgspec.Struct, frozen=True):
    # Any other type fails to decode, which leaves the line to the general path.
    type: Literal["ADDED", "MODIFIED"]
    # ``object`` is a builtin.
    found: _WatchedPod = msgspec.field(name="object")


class _AskedMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    resourceVersion: str  # noqa: N815 - the name in the API


class _AskedPod(msgspec.Struct, frozen=True):
    metadata: _AskedMetadata
    spec: PreferringSpec


_POD: Final = msgspec.json.Decoder(Pod)
_WATCHED: Final = msgspec.json.Decoder(_WatchedEvent)
_ASKED: Final = msgspec.json.Decoder(_AskedPod)


class AskedPod(msgspec.Struct, frozen=True, gc=False):
    """Version and name of the pod in a text, and whether the pod has preferences (see ``prefers``)."""

    name: ObjectName
    uid: str
    version: str
    has_preferences: bool


def asked_pod(body: bytes | msgspec.Raw) -> AskedPod | None:
    """The pod in question, without its needs, which are known for this version. None if it cannot be decoded."""
    try:
        pod = _ASKED.decode(body)
    except (ValueError, RecursionError):
        return None
    meta = pod.metadata
    return AskedPod(ObjectName(meta.namespace, meta.name), meta.uid, meta.resourceVersion, prefers(pod.spec))


def decode_pod(body: bytes | msgspec.Raw) -> PodFacts:
    """A Pod without what only other pods' constraints see of it. Raises ``ValueError``."""
    try:
        return pod_facts(_POD.decode(body))
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None


def watched_pod(line: bytes) -> Watched[PodFacts] | None:
    """A Pod that appeared or changed, from a line of a watch; None for any other line, or if it cannot be read."""
    try:
        # The result must equal that of read_pod for the same object: both paths fill one cache.
        pod = _WATCHED.decode(line).found
        meta, spec = pod.metadata, pod.spec
        ports = [port for container in spec.containers for port in container.ports or ()]
        is_leaving, asks = bool(meta.deletionTimestamp), other_requests(spec)
        traits = placed_traits(meta.labels or {}, spec, ports, is_leaving=is_leaving, asks=asks)
        facts = pod_facts(pod, traits)
        # Most lines are about other pods, and copying is slow.
        facts = replace(facts, is_leaving=True) if is_leaving else facts
    except (ValueError, RecursionError):
        return None
    return Watched(facts.name, meta.uid, meta.resourceVersion, facts)
