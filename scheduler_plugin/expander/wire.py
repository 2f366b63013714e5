"""The expander's messages, both generations, to and from plain values (S2.8a).

Rules that hold here:

- The newer fields win where a message has both.
- Equal pods arrive once per option, and equal amounts in most nodes: each is read once per request.
- A group whose node or pods cannot be read is a problem of that group alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from protocol.names import GPU_SUFFIX, LABEL_MACHINE, LABEL_MACHINE_OLD
from protocol.ranking.prices import Needs
from protocol.units import ZERO, Bytes, MilliCpu, QuantityError, Resources
from scheduler_plugin.expander.messages import (
    MESSAGES,
    NodeMessage,
    OptionMessage,
    PodMessage,
    PodSpecMessage,
    QuantityMessage,
    RequestMessage,
    ResponseMessage,
)
from scheduler_plugin.expander.scaleup import NodeShape, PodNeeds, ScaleUp, ScaleUpOption

K = TypeVar("K")
V = TypeVar("V")


class MalformedScaleUpError(ValueError):
    """The request cannot be read; the message says which part."""


def decode_scale_up(body: bytes) -> ScaleUp:
    """Reads a ``BestOptionsRequest`` of either generation. Raises ``MalformedScaleUpError``."""
    try:
        request = cast("RequestMessage", _parse("BestOptionsRequest", body))
    except DecodeError as error:
        raise MalformedScaleUpError(f"expected a BestOptionsRequest: {error}") from None
    reader = _Reader()
    options = tuple(reader.option(option) for option in request.options)
    shapes = reader.shapes(request.nodeBytesMap or request.nodeMap)
    return ScaleUp(options, shapes, reader.problems)


def encode_groups(groups: Iterable[tuple[str, int, str]]) -> bytes:
    """A ``BestOptionsResponse`` of (group, nodes, why); the autoscaler looks only at the group."""
    response = cast("ResponseMessage", MESSAGES["BestOptionsResponse"]())
    for group, nodes, why in groups:
        response.options.add(nodeGroupId=group, nodeCount=nodes, debug=why)
    return response.SerializeToString()


class _Known(dict[K, V]):
    """A table that reads what it does not hold yet, once."""

    def __init__(self, read: Callable[[K], V]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, key: K) -> V:
        value = self[key] = self._read(key)
        return value


class _Reader:
    """Reads the parts of one request, and remembers what could not be read of which group."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self._pods: _Known[bytes, PodNeeds] = _Known(self._pod)
        self._cpu: _Known[str, MilliCpu] = _Known(MilliCpu.parse)
        self._mem: _Known[str, Bytes] = _Known(Bytes.parse)

    def option(self, option: OptionMessage) -> ScaleUpOption:
        pods: tuple[PodNeeds, ...] = ()
        try:
            pods = tuple(map(self._pods.__getitem__, option.podBytes or option.pod))
        except (DecodeError, QuantityError) as error:
            self.problems[option.nodeGroupId] = f"a pod cannot be read: {error}"
        return ScaleUpOption(option.nodeGroupId, max(0, option.nodeCount), pods)

    def shapes(self, nodes: Mapping[str, bytes]) -> dict[str, NodeShape]:
        shapes = {}
        for group, body in nodes.items():
            try:
                shapes[group] = self._shape(cast("NodeMessage", _parse("Node", body)))
            except (DecodeError, QuantityError) as error:
                self.problems[group] = f"its node cannot be read: {error}"
        return shapes

    def _shape(self, node: NodeMessage) -> NodeShape:
        labels = node.metadata.labels
        machine = labels.get(LABEL_MACHINE) or labels.get(LABEL_MACHINE_OLD) or ""
        return NodeShape(machine, Needs(*self._amounts(node.status.capacity or node.status.allocatable)))

    def _pod(self, body: bytes) -> PodNeeds:
        pod = cast("PodMessage", _parse("Pod", body))
        meta = pod.metadata
        return PodNeeds(meta.uid or f"{meta.namespace}/{meta.name}", Needs(*self._needs(pod.spec)))

    def _needs(self, spec: PodSpecMessage) -> tuple[Resources, int]:
        """What kube-scheduler counts: everything that runs together at the pod's greatest moment, and overhead."""
        sidecars, starting = (ZERO, 0), (ZERO, 0)
        for container in spec.initContainers:
            needs = _plus(sidecars, self._amounts(container.resources.requests))
            starting = _greater(starting, needs)
            if container.restartPolicy == "Always":
                sidecars = needs
        running = sidecars
        for container in spec.containers:
            running = _plus(running, self._amounts(container.resources.requests))
        return _plus(_greater(running, starting), self._amounts(spec.overhead))

    def _amounts(self, amounts: Mapping[str, QuantityMessage]) -> tuple[Resources, int]:
        # Looking up is much quicker than items(), which protobuf's maps inherit from an abstract class.
        cpu, mem, gpus = ZERO.cpu, ZERO.mem, 0
        for name in amounts:
            if name == "cpu":
                cpu = self._cpu[amounts[name].string]
            elif name == "memory":
                mem = self._mem[amounts[name].string]
            elif name.endswith(GPU_SUFFIX):
                gpus += Bytes.parse(amounts[name].string).value
        return Resources(cpu, mem), gpus


def _plus(left: tuple[Resources, int], right: tuple[Resources, int]) -> tuple[Resources, int]:
    return left[0] + right[0], left[1] + right[1]


def _greater(left: tuple[Resources, int], right: tuple[Resources, int]) -> tuple[Resources, int]:
    return left[0].at_least(right[0]), max(left[1], right[1])


def _parse(kind: str, body: bytes) -> Message:
    message = MESSAGES[kind]()
    message.ParseFromString(body)
    return message
