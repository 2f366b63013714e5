"""kube-scheduler's extender protocol: decode, ask the service, encode. No decisions here (facts: JSON of the verbs).

Rules that hold here:

- Always HTTP 200 with ``Error`` in the body where the verb's result has such a key; 503 where it has none.
- Scores are integers. Only nodes that were asked for are named.
- A call with whole ``Nodes`` (``nodeCacheCapable: false``, or a simulation) changes nothing: no pod waits because of
  it, and a node that is not known is judged by what the call says of it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.messages import ObjectName
from scheduler_plugin.cluster.pods import decode_pod
from scheduler_plugin.cluster.translate import decode_node
from scheduler_plugin.ledger import LedgerError, PodFacts
from scheduler_plugin.ledger.preemption import Candidate
from scheduler_plugin.placement import Filtered
from scheduler_plugin.service import Service
from scheduler_plugin.web.bodies import BodyError, decoded, read_body

LONGEST_BODY: Final = 16 * 1024 * 1024
"""Bytes: a pod and the names of 5,000 nodes have half of one MiB, whole nodes have some KiB each."""


class _NodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class _Args(msgspec.Struct, frozen=True, rename="pascal"):
    pod: msgspec.Raw
    nodes: _NodeList | None = None
    node_names: list[str] | None = None


class _RawList(msgspec.Struct, frozen=True):
    kind: str
    apiVersion: str  # noqa: N815 - the name in the API
    items: list[msgspec.Raw]


class _FilterResult(msgspec.Struct, frozen=True, rename="pascal"):
    nodes: _RawList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class _Score(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    host: str
    score: int


class _Binding(msgspec.Struct, frozen=True):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class _BindingResult(msgspec.Struct, frozen=True, rename="pascal"):
    error: str


class _VictimMeta(msgspec.Struct, frozen=True):
    uid: str


class _VictimPod(msgspec.Struct, frozen=True):
    metadata: _VictimMeta


class _Victims(msgspec.Struct, frozen=True, rename="pascal"):
    pods: list[_VictimPod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class _Uid(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(name="UID")


class _MetaVictims(msgspec.Struct, frozen=True, rename="pascal"):
    pods: list[_Uid] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class _PreemptionArgs(msgspec.Struct, frozen=True, rename="pascal"):
    pod: msgspec.Raw
    node_name_to_victims: dict[str, _Victims] | None = None
    node_name_to_meta_victims: dict[str, _MetaVictims] | None = None


class _PreemptionResult(msgspec.Struct, frozen=True, rename="pascal"):
    node_name_to_meta_victims: dict[str, _MetaVictims]


_ARGS: Final = msgspec.json.Decoder(_Args)
_BINDING: Final = msgspec.json.Decoder(_Binding)
_PREEMPTION: Final = msgspec.json.Decoder(_PreemptionArgs)
_ENCODER: Final = msgspec.json.Encoder()


class ExtenderRoutes:
    """The four verbs over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def filter(self, request: Request) -> Response:
        """``/filter``: which nodes the pod fits."""
        try:
            result = self._filtered(decoded(_ARGS, await read_body(request, LONGEST_BODY)))
        except (LedgerError, ValueError) as error:
            self._count("filter", "error")
            return _json(_FilterResult(error=str(error)))
        self._count("filter", "done")
        return _json(result)

    def _filtered(self, args: _Args) -> _FilterResult:
        pod = decode_pod(args.pod)
        if args.nodes is None:
            found = self._service.filter(pod, args.node_names or [])
            return _FilterResult(None, found.fits, found.refused, found.never)
        items = args.nodes.items or []
        return _simulated(items, *self._simulation(pod, items))

    def _simulation(self, pod: PodFacts, items: list[msgspec.Raw]) -> tuple[list[str], Filtered]:
        nodes = [decode_node(item) for item in items]
        return [node.name for node in nodes], self._service.simulate(pod, nodes)

    async def prioritize(self, request: Request) -> Response:
        """``/prioritize``: how good each node would be."""
        try:
            args = decoded(_ARGS, await read_body(request, LONGEST_BODY))
            names = args.node_names or [decode_node(item).name for item in _items(args)]
            scores = self._service.scores(decode_pod(args.pod), names)
        except (LedgerError, ValueError) as error:
            self._count("prioritize", "error")
            return _failed(error)
        self._count("prioritize", "done")
        return _json(list(map(_Score, names, scores)))

    async def bind(self, request: Request) -> Response:
        """``/bind``: Reserve, then the binding itself."""
        try:
            args = decoded(_BINDING, await read_body(request, LONGEST_BODY))
            error = await self._service.bind(ObjectName(args.pod_namespace, args.pod_name), args.pod_uid, args.node)
        except ValueError as malformed:
            error = str(malformed)
        self._count("bind", "refused" if error else "done")
        return _json(_BindingResult(error))

    async def preempt(self, request: Request) -> Response:
        """``/preempt``: on which of the nodes the pod would fit once the victims are gone."""
        try:
            args = decoded(_PREEMPTION, await read_body(request, LONGEST_BODY))
            offered = _offered(args)
            candidates = [Candidate(node, {pod.uid for pod in v.pods or ()}) for node, v in offered.items()]
            helped = self._service.preempt(decode_pod(args.pod), candidates)
        except (LedgerError, ValueError) as error:
            self._count("preempt", "error")
            return _failed(error)
        self._count("preempt", "done")
        return _json(_PreemptionResult({node: offered[node] for node in helped}))

    def _count(self, verb: str, outcome: str) -> None:
        self._service.context.telemetry.verbs.labels(verb, outcome).inc()


def _simulated(items: list[msgspec.Raw], names: list[str], found: Filtered) -> _FilterResult:
    fits = set(found.fits)
    kept = [item for item, name in zip(items, names, strict=True) if name in fits]
    return _FilterResult(_RawList("NodeList", "v1", kept), None, found.refused, found.never)


def _items(args: _Args) -> list[msgspec.Raw]:
    return (args.nodes.items if args.nodes is not None else None) or []


def _offered(args: _PreemptionArgs) -> dict[str, _MetaVictims]:
    if args.node_name_to_meta_victims:
        return args.node_name_to_meta_victims
    return {
        node: _MetaVictims([_Uid(pod.metadata.uid) for pod in victims.pods or ()], victims.num_pdb_violations)
        for node, victims in (args.node_name_to_victims or {}).items()
    }


def _json(result: object) -> Response:
    return Response(_ENCODER.encode(result), media_type="application/json")


def _failed(error: Exception) -> Response:
    status = 503 if isinstance(error, LedgerError) else error.status if isinstance(error, BodyError) else 400
    return Response(_ENCODER.encode({"error": str(error)}), status, media_type="application/json")
