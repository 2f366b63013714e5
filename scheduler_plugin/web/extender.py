"""kube-scheduler's extender protocol: decode, ask the service, encode. No decisions here.

Scores are integers. Only nodes that were asked for are named.
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
from scheduler_plugin.service.service import Service
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
from scheduler_plugin.web.hot_paths import HotRequest, HotResponse

LONGEST_BODY: Final = 16 * 1024 * 1024
"""Bytes: a pod and the names of 5,000 nodes take half a MiB, whole nodes some KiB each."""


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
        """``/filter``: the nodes that the pod fits."""
        try:
            result = self._filtered(decoded(_FILTER, request.body()))
        except (LedgerError, ValueError) as error:
            self._count("filter", "error")
            # HTTP 200: kube-scheduler reads the reason from ``Error`` in the body; of any other answer it reports only
            # the status.
            return _json(ExtenderFilterResult(error=str(error)))
        self._count("filter", "done")
        return _json(result)

    def _filtered(self, args: FilterArgs) -> ExtenderFilterResult:
        if args.nodes is None:
            pod, is_open = self._pod(args.pod)
            candidates = AskedNodes(args.node_names)
            # Without preferences any good node will do, and one look-up replaces a filter over thousands.
            best = self._service.best(pod, candidates) if is_open else []
            filtered = Filtered(best, {}, {}) if best else self._service.filter(pod, candidates.names())
            return ExtenderFilterResult(None, filtered.fits, filtered.refused, filtered.never)
        # A call with whole ``Nodes`` (``nodeCacheCapable: false``, or a simulation) changes nothing: its pod does not
        # count as waiting, and an unknown node is judged by what the call says of it.
        items = args.nodes.items or []
        return _simulated(items, *self._simulation(decode_pod(args.pod), items))

    def _pod(self, body: msgspec.Raw) -> tuple[PodFacts, bool]:
        """The pod, and True if it has no preferences between nodes. Raises ``ValueError``.

        Its needs are not decoded again if the watch has delivered this version.
        """
        header = asked_pod(body)
        pod = None if header is None else self._service.known_pod(header)
        if header is None or pod is None:
            return decode_pod(body), not has_preferences(body)
        return pod, not header.has_preferences

    def _simulation(self, pod: PodFacts, items: list[msgspec.Raw]) -> tuple[list[str], Filtered]:
        nodes = [decode_node(item) for item in items]
        return [node.name for node in nodes], self._service.simulate(pod, nodes)

    def prioritize(self, request: HotRequest) -> HotResponse:
        """``/prioritize``: the score of each node."""
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
        """``/preempt``: the nodes on which the pod would fit once the victims are gone."""
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
    fitting = [item for item, name in zip(items, names, strict=True) if name in fits]
    return ExtenderFilterResult(RawNodeList("NodeList", "v1", fitting), None, found.refused, found.never)


def _items(args: ExtenderArgs) -> list[msgspec.Raw]:
    return (args.nodes.items if args.nodes is not None else None) or []


def _offered(args: ExtenderPreemptionArgs) -> dict[str, MetaVictims]:
    # With ``nodeCacheCapable`` kube-scheduler sends UIDs only, otherwise whole pods.
    if args.node_name_to_meta_victims:
        return args.node_name_to_meta_victims
    return {
        node: MetaVictims([MetaPod(pod.metadata.uid) for pod in victims.pods or ()], victims.num_pdb_violations)
        for node, victims in (args.node_name_to_victims or {}).items()
    }


def _json(result: object) -> HotResponse:
    return HotResponse(_ENCODER.encode(result))


def _failed(error: Exception) -> HotResponse:
    # These verbs have no field for an error: kube-scheduler only sees the status.
    status = 503 if isinstance(error, LedgerError) else error.status if isinstance(error, BodyError) else 400
    return HotResponse(_ENCODER.encode({"error": str(error)}), status)
