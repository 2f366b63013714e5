"""Converts protobuf messages of the expander, old and new, from and to plain values (S2.8a)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.message import DecodeError

from protocol.kubernetes.protobuf import KUBERNETES, Fields, message_classes, only
from protocol.ranking.prices import Needs, is_accelerator, price_keys
from protocol.units import ZERO, Bytes, MilliCpu, QuantityError, Resources
from protocol.wire.container_amounts import counted
from scheduler_plugin.expander import texts
from scheduler_plugin.expander.scaleup import NodeShape, PodNeeds, ScaleUp, ScaleUpOption

LOCAL_STORAGE: Final = "ephemeral-storage"
GB: Final = 1_000_000_000
NOTHING: Final = Needs(ZERO)

_OF_KUBERNETES: Final = ("Pod", "PodSpec", "Container", "Requirements", "Quantity", "Node", "NodeStatus")
_MESSAGES: Final[dict[str, Fields]] = {
    "BestOptionsRequest": (
        ("options", 1, "many Option"),
        # Older releases embed messages here, newer ones use bytes in field 3. The encoding is the same.
        ("nodeMap", 2, "map bytes"),
        ("nodeBytesMap", 3, "map bytes"),
    ),
    "BestOptionsResponse": (("options", 1, "many Option"),),
    "Option": (
        ("nodeGroupId", 1, "string"),
        ("nodeCount", 2, "int32"),
        ("debug", 3, "string"),
        # Likewise, newer ones use bytes in field 5.
        ("pod", 4, "many bytes"),
        ("podBytes", 5, "many bytes"),
    ),
    **{name: KUBERNETES[name] for name in _OF_KUBERNETES},
    # Only the fields that are used; protobuf skips the rest.
    "ObjectMeta": only("ObjectMeta", "name", "namespace", "uid", "labels"),
}
MESSAGES: Final = message_classes("grpcplugin", _MESSAGES, "proto3")

# Classes are created at run time, so their fields are untyped.
_Message = Any


class MalformedScaleUpError(ValueError):
    """The request cannot be decoded, and why."""


def decode_scale_up(body: bytes) -> ScaleUp:
    """Decode a ``BestOptionsRequest``, old or new. Raises ``MalformedScaleUpError``."""
    try:
        request = _parse("BestOptionsRequest", body)
    except DecodeError as error:
        raise MalformedScaleUpError(f"expected a BestOptionsRequest: {error}") from None
    reader = _Reader()
    options = tuple(reader.option(option) for option in request.options)
    # A message may have both fields; the newer one takes precedence.
    shapes = reader.shapes(request.nodeBytesMap or request.nodeMap)
    return ScaleUp(options, shapes, reader.problems)


def encode_groups(groups: Iterable[tuple[str, int, str]]) -> bytes:
    """Encode a ``BestOptionsResponse`` of group, nodes and reason; the autoscaler reads only the group."""
    response: _Message = MESSAGES["BestOptionsResponse"]()
    for group, nodes, why in groups:
        response.options.add(nodeGroupId=group, nodeCount=nodes, debug=why)
    written: bytes = response.SerializeToString()
    return written


class _Reader:
    """Decodes the parts of one request, and collects problems by group."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        # The same pods are in many options, and the same amounts in most nodes.
        self._pod, self._cpu, self._bytes = cache(self._read_pod), cache(MilliCpu.parse), cache(Bytes.parse)

    def option(self, option: _Message) -> ScaleUpOption:
        pods: tuple[PodNeeds, ...] = ()
        try:
            pods = tuple(map(self._pod, option.podBytes or option.pod))
        except (DecodeError, QuantityError) as error:
            # Other groups can still be ranked.
            self.problems[option.nodeGroupId] = texts.POD_UNREADABLE.format(error=error)
        # The field is signed.
        return ScaleUpOption(option.nodeGroupId, max(0, option.nodeCount), pods)

    def shapes(self, nodes: Mapping[str, bytes]) -> dict[str, NodeShape]:
        shapes = {}
        for group, body in nodes.items():
            try:
                shapes[group] = self._shape(_parse("Node", body))
            except (DecodeError, QuantityError) as error:
                self.problems[group] = texts.NODE_UNREADABLE.format(error=error)
        return shapes

    def _shape(self, node: _Message) -> NodeShape:
        return NodeShape(
            price_keys(node.metadata.labels), self._amounts(node.status.capacity or node.status.allocatable)
        )

    def _read_pod(self, body: bytes) -> PodNeeds:
        pod = _parse("Pod", body)
        meta = pod.metadata
        # Without a UID the name identifies the pod.
        return PodNeeds(meta.uid or f"{meta.namespace}/{meta.name}", self._needs(pod.spec))

    def _needs(self, spec: _Message) -> Needs:
        """Requests as kube-scheduler counts them. Pod-level requests replace the sum of the containers."""
        running = (self._amounts(container.resources.requests) for container in spec.containers)
        inits = ((self._amounts(one.resources.requests), one.restartPolicy == "Always") for one in spec.initContainers)
        of_containers, _ = counted(running, inits, NOTHING, Needs.at_least)
        return self._pod_level(spec.resources.requests, of_containers) + self._amounts(spec.overhead)

    def _pod_level(self, amounts: Mapping[str, _Message], of_containers: Needs) -> Needs:
        if not amounts:
            return of_containers
        pod_level, resources = self._amounts(amounts).resources, of_containers.resources
        cpu = pod_level.cpu if "cpu" in amounts else resources.cpu
        mem = pod_level.mem if "memory" in amounts else resources.mem
        return Needs(Resources(cpu, mem), of_containers.gpus, of_containers.storage_gb)

    def _amounts(self, amounts: Mapping[str, _Message]) -> Needs:
        # Lookups are much faster than items() of protobuf maps.
        cpu, mem, gpus, storage = ZERO.cpu, ZERO.mem, 0, ZERO.mem
        for name in amounts:
            if name == "cpu":
                cpu = self._cpu(amounts[name].string)
            elif name == "memory":
                mem = self._bytes(amounts[name].string)
            elif name == LOCAL_STORAGE:
                storage = self._bytes(amounts[name].string)
            elif is_accelerator(name):
                # Device counts are quantities too.
                gpus += self._bytes(amounts[name].string).value
        return Needs(Resources(cpu, mem), gpus, storage.value / GB)


def _parse(kind: str, body: bytes) -> _Message:
    message = MESSAGES[kind]()
    message.ParseFromString(body)
    return message
