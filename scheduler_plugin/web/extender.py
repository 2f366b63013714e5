"""kube-scheduler's extender protocol: decode, call the service, encode. No decisions here.

Scores are integers. Responses name only the nodes of the request.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

import msgspec

from protocol.messages import ObjectName
from protocol.runtime.credentials import CredentialsError, FileToken
from scheduler_plugin.cluster.pods.reading import decode_pod, pod_header
from scheduler_plugin.cluster.translate import decode_node
from scheduler_plugin.ledger.binding import PreemptionCandidate
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.outcomes import LedgerError
from scheduler_plugin.placement.verdict import Filtered
from scheduler_plugin.service.service import ActiveService, Service
from scheduler_plugin.texts import refusals
from scheduler_plugin.web import extender_messages as messages
from scheduler_plugin.web.hot_paths import Admission, BodyError, HotRequest, HotResponse, decoded
from scheduler_plugin.web.models import Problem

MAX_BODY: Final = 16 * 1024 * 1024
"""Bytes. A pod and 5,000 node names take 0.5 MiB, whole nodes some KiB each."""


_FILTER: Final = messages.ArgsDecoder(messages.FilterArgs)
_ARGS: Final = messages.ArgsDecoder(messages.ExtenderArgs)
_BINDING: Final = messages.ArgsDecoder(messages.ExtenderBindingArgs)
_PREEMPTION: Final = messages.ArgsDecoder(messages.ExtenderPreemptionArgs)
_ENCODER: Final = msgspec.json.Encoder()


def filter_nodes(service: Service, request: HotRequest) -> HotResponse:
    """``/filter``: the nodes that the pod fits."""
    try:
        result = _filtered(service, decoded(_FILTER.decode, request.body()))
    except (LedgerError, ValueError) as error:
        _count(service, "filter", "error")
        # HTTP 200: kube-scheduler reads ``Error`` in the body, but of other statuses reports only the status.
        return _json(messages.ExtenderFilterResult(error=str(error)))
    _count(service, "filter", "done")
    return _json(result)


def _filtered(service: Service, args: messages.FilterArgs) -> messages.ExtenderFilterResult:
    if args.nodes is None:
        pod, is_open = _pod(service, args.pod)
        candidates = messages.RequestedNodes(args.node_names)
        # Without preferences any good node will do, and one lookup replaces a filter over thousands.
        best = service.best(pod, candidates) if is_open else []
        filtered = Filtered(best, {}, {}) if best else service.filter(pod, candidates.names())
        return messages.ExtenderFilterResult(None, filtered.fits, filtered.refused, filtered.never)
    # A call with whole ``Nodes`` (``nodeCacheCapable: false``, or a simulation) changes nothing: its pod does not wait,
    # and an unknown node is judged by the call.
    nodes = [(item, decode_node(item)) for item in args.nodes.items or []]
    simulated = service.simulate(decode_pod(args.pod), [node for _, node in nodes])
    fits = set(simulated.fits)
    fitting = messages.RawNodeList("NodeList", "v1", [item for item, node in nodes if node.name in fits])
    return messages.ExtenderFilterResult(fitting, None, simulated.refused, simulated.never)


def _pod(service: Service, body: msgspec.Raw) -> tuple[PodFacts, bool]:
    """The pod, and True if it has no node preferences. Raises ``ValueError``.

    Reuses the decoded pod if the watch has delivered this version.
    """
    header = pod_header(body)
    feed = service.context.feed
    pod = None if header is None else feed.pod_at(header.name, header.uid, header.version)
    # An unreadable pod may have preferences.
    return decode_pod(body) if pod is None else pod, header is not None and not header.has_preferences


def prioritize(service: Service, request: HotRequest) -> HotResponse:
    """``/prioritize``: the score of each node."""
    try:
        args = decoded(_ARGS.decode, request.body())
        names = args.node_names or [decode_node(item).name for item in (args.nodes and args.nodes.items) or []]
        scores = service.context.ledger.scores(decode_pod(args.pod), names)
    except (LedgerError, ValueError) as error:
        _count(service, "prioritize", "error")
        return _failed(error)
    _count(service, "prioritize", "done")
    return _json(list(map(messages.HostPriority, names, scores)))


async def bind(service: Service, request: HotRequest) -> HotResponse:
    """``/bind``: reserve, then bind."""
    try:
        args = decoded(_BINDING.decode, request.body())
        error = await service.bind(ObjectName(args.pod_namespace, args.pod_name), args.pod_uid, args.node)
    except ValueError as malformed:
        error = str(malformed)
    _count(service, "bind", "refused" if error else "done")
    return _json(messages.ExtenderBindingResult(error))


def preempt(service: Service, request: HotRequest) -> HotResponse:
    """``/preempt``: the nodes that fit the pod without the victims."""
    try:
        args = decoded(_PREEMPTION.decode, request.body())
        offered = _offered(args)
        candidates = [PreemptionCandidate(node, {pod.uid for pod in v.pods or ()}) for node, v in offered.items()]
        nodes = service.preempt(decode_pod(args.pod), candidates)
    except (LedgerError, ValueError) as error:
        _count(service, "preempt", "error")
        return _failed(error)
    _count(service, "preempt", "done")
    return _json(messages.ExtenderPreemptionResult({node: offered[node] for node in nodes}))


def _count(service: Service, verb: str, outcome: str) -> None:
    service.context.telemetry.verb(verb, outcome).inc()


def _offered(args: messages.ExtenderPreemptionArgs) -> dict[str, messages.MetaVictims]:
    # With ``nodeCacheCapable`` kube-scheduler sends UIDs only, otherwise whole pods.
    if args.node_name_to_meta_victims:
        return args.node_name_to_meta_victims
    return {
        node: messages.MetaVictims(
            [messages.MetaPod(pod.metadata.uid) for pod in victims.pods or ()], victims.num_pdb_violations
        )
        for node, victims in (args.node_name_to_victims or {}).items()
    }


def _json(result: object) -> HotResponse:
    return HotResponse(_ENCODER.encode(result))


def _failed(error: Exception) -> HotResponse:
    # These verbs have no error field: kube-scheduler sees only the status.
    status = 503 if isinstance(error, LedgerError) else error.status if isinstance(error, BodyError) else 400
    return HotResponse(_ENCODER.encode({"error": str(error)}), status)


_REFUSAL: Final = HotResponse(msgspec.json.encode(Problem(refusals.BEARER_NEEDED)), 401)


def guarded(replica: ActiveService, admission: Admission) -> Admission:
    """Admit callers with the configured token that ``admission`` admits too."""
    tokens: dict[str, FileToken] = {}

    def guard(authorization: str | None) -> HotResponse | None:
        context = replica.context
        # Read at every call: the settings may change.
        path = context.feed.settings.extender_token_file
        if path is not None and not _has_token(
            authorization, tokens.setdefault(path, FileToken(Path(path), context.clock))
        ):
            return _REFUSAL
        return admission(authorization)

    return guard


def _has_token(authorization: str | None, token: FileToken) -> bool:
    try:
        expected = token()
    # An unreadable file admits no client.
    except CredentialsError:
        return False
    token_in_header = (authorization or "").removeprefix("Bearer ")
    # An empty file must not admit callers without a token. The comparison is constant-time.
    return bool(expected) and hmac.compare_digest(token_in_header.encode(), expected.encode())
