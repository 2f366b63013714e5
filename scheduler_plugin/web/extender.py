"""kube-scheduler's extender protocol: decode, ask the service, encode. No decisions here.

Rules that hold here:

- Always HTTP 200 with ``Error`` in the body where the verb's result has such a key; 503 where it has none.
- Scores are integers. Only nodes that were asked for are named.
- A call with whole ``Nodes`` (``nodeCacheCapable: false``, or a simulation) changes nothing: no pod waits because of
  it, and a node that is not known is judged by what the call says of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from protocol.messages import ObjectName
from scheduler_plugin.cluster.pods.texts import asked_pod, decode_pod
from scheduler_plugin.cluster.scheduling_fields import has_preferences
from scheduler_plugin.cluster.translate import decode_node
from scheduler_plugin.ledger import LedgerError, PodFacts
from scheduler_plugin.ledger.preemption import PreemptionCandidate
from scheduler_plugin.placement import Filtered
from scheduler_plugin.service import Service
from scheduler_plugin.web.bodies import BodyError, decoded
from scheduler_plugin.web.extender_messages import (
    AskedNodes,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    FilterArgs,
    HostPriority,
    MetaPod,
    MetaVictims,
    RawNodeList,
)
from scheduler_plugin.web.http.hot_paths import HotRequest, HotResponse

LONGEST_BODY: Final = 16 * 1024 * 1024
"""Bytes: a pod and the names of 5,000 nodes have half of one MiB, whole nodes have some KiB each."""


_FILTER: Final = msgspec.json.Decoder(FilterArgs)
_ARGS: Final = msgspec.json.Decoder(ExtenderArgs)
_BINDING: Final = msgspec.json.Decoder(ExtenderBindingArgs)
_PREEMPTION: Final = msgspec.json.Decoder(ExtenderPreemptionArgs)
_ENCODER: Final = msgspec.json.Encoder()


class ExtenderRoutes:
    """The four verbs over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def filter(self, request: HotRequest) -> HotResponse:
        """``/filter``: which nodes the pod fits."""
        try:
            result = self._filtered(decoded(_FILTER, request.body()))
        except (LedgerError, ValueError) as error:
            self._count("filter", "error")
            return _json(ExtenderFilterResult(error=str(error)))
        self._count("filter", "done")
        return _json(result)

    def _filtered(self, args: FilterArgs) -> ExtenderFilterResult:
        if args.nodes is None:
            pod, is_open = self._pod(args.pod)
            asked = AskedNodes(args.node_names)
            best = self._service.best(pod, asked) if is_open else []
            found = Filtered(best, {}, {}) if best else self._service.filter(pod, asked.names())
            return ExtenderFilterResult(None, found.fits, found.refused, found.never)
        items = args.nodes.items or []
        return _simulated(items, *self._simulation(decode_pod(args.pod), items))

    def _pod(self, body: msgspec.Raw) -> tuple[PodFacts, bool]:
        """The pod, and whether any node suits it as well as another. Raises ``ValueError``.

        What it needs is not read again where the watch has shown this version.
        """
        asked = asked_pod(body)
        known = None if asked is None else self._service.known_pod(asked)
        if asked is None or known is None:
            return decode_pod(body), not has_preferences(body)
        return known, not asked.has_preferences

    def _simulation(self, pod: PodFacts, items: list[msgspec.Raw]) -> tuple[list[str], Filtered]:
        nodes = [decode_node(item) for item in items]
        return [node.name for node in nodes], self._service.simulate(pod, nodes)

    def prioritize(self, request: HotRequest) -> HotResponse:
        """``/prioritize``: how good each node would be."""
        try:
            args = decoded(_ARGS, request.body())
            names = args.node_names or [decode_node(item).name for item in _items(args)]
            scores = self._service.scores(decode_pod(args.pod), names)
        except (LedgerError, ValueError) as error:
            self._count("prioritize", "error")
            return _failed(error)
        self._count("prioritize", "done")
        return _json(list(map(HostPriority, names, scores)))

    async def bind(self, request: HotRequest) -> HotResponse:
        """``/bind``: Reserve, then the binding itself."""
        try:
            args = decoded(_BINDING, request.body())
            error = await self._service.bind(ObjectName(args.pod_namespace, args.pod_name), args.pod_uid, args.node)
        except ValueError as malformed:
            error = str(malformed)
        self._count("bind", "refused" if error else "done")
        return _json(ExtenderBindingResult(error))

    def preempt(self, request: HotRequest) -> HotResponse:
        """``/preempt``: on which of the nodes the pod would fit once the victims are gone."""
        try:
            args = decoded(_PREEMPTION, request.body())
            offered = _offered(args)
            candidates = [PreemptionCandidate(node, {pod.uid for pod in v.pods or ()}) for node, v in offered.items()]
            helped = self._service.preempt(decode_pod(args.pod), candidates)
        except (LedgerError, ValueError) as error:
            self._count("preempt", "error")
            return _failed(error)
        self._count("preempt", "done")
        return _json(ExtenderPreemptionResult({node: offered[node] for node in helped}))

    def _count(self, verb: str, outcome: str) -> None:
        self._service.context.telemetry.verb(verb, outcome).inc()


def _simulated(items: list[msgspec.Raw], names: list[str], found: Filtered) -> ExtenderFilterResult:
    fits = set(found.fits)
    kept = [item for item, name in zip(items, names, strict=True) if name in fits]
    return ExtenderFilterResult(RawNodeList("NodeList", "v1", kept), None, found.refused, found.never)


def _items(args: ExtenderArgs) -> list[msgspec.Raw]:
    return (args.nodes.items if args.nodes is not None else None) or []


def _offered(args: ExtenderPreemptionArgs) -> dict[str, MetaVictims]:
    if args.node_name_to_meta_victims:
        return args.node_name_to_meta_victims
    return {
        node: MetaVictims([MetaPod(pod.metadata.uid) for pod in victims.pods or ()], victims.num_pdb_violations)
        for node, victims in (args.node_name_to_victims or {}).items()
    }


def _json(result: object) -> HotResponse:
    return HotResponse(_ENCODER.encode(result))


def _failed(error: Exception) -> HotResponse:
    status = 503 if isinstance(error, LedgerError) else error.status if isinstance(error, BodyError) else 400
    return HotResponse(_ENCODER.encode({"error": str(error)}), status)
