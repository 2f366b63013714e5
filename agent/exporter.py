"""Prometheus metrics, probes, ``/explain`` and ``/database`` of one agent process.

Numbers are read from the runners on each scrape; a VM costs no objects in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agent import texts
from agent.assignments import Assignment
from agent.core.explain import explain
from agent.core.growth import GrowthTimes
from agent.ports import PortError
from agent.runner import Runner
from agent.supervisor import Supervisor
from protocol.kubernetes.access_reviews import Scope
from protocol.messages import ObjectName
from protocol.pod_database import pod_of
from protocol.runtime.build_info import describe_process
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import Caller, ExplainAccess
from protocol.runtime.explaining.probe_server import Guard, Route
from protocol.runtime.serving.http_requests import HttpResponse
from protocol.runtime.tls_files import FollowedTls
from protocol.runtime.tls_metrics import watch_tls
from protocol.units import Instant, Resources

_EXPLANATIONS = frozenset({"/explain", "/database"})
VM_LABELS = ("namespace", "vm")


class AgentCollector(Collector):
    """The state of every runner as metrics; ``messages`` to the scheduler are counted where batches are sent."""

    def __init__(self, supervisor: Supervisor, clock: Clock, messages: Mapping[str, int] | None = None) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._messages = messages

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        supervisor, runners, now = self._supervisor, list(self._supervisor.runners.values()), self._clock.now()
        yield GaugeMetricFamily("autoscale_agent_vms", "VMs that this agent looks after.", len(runners))
        text = "Agents of a VM that ended by a bug."
        yield CounterMetricFamily("autoscale_agent_crashes", text, supervisor.crashes)
        text, unreadable = "Pods of this node that cannot be read.", len(supervisor.source.unreadable)
        yield GaugeMetricFamily("autoscale_agent_unreadable_pods", text, unreadable)
        if self._messages is not None:
            text = "Messages to the scheduler, for one VM alone or for many together."
            sent = CounterMetricFamily("autoscale_agent_scheduler_messages", text, labels=("form",))
            for form, count in self._messages.items():
                sent.add_metric((form,), count)
            yield sent
        for family, values in _of_vms(now):
            for runner in runners:
                vm = runner.assignment.vm
                for label, value in values(runner).items():
                    if value is not None:
                        family.add_metric((vm.namespace, vm.name, *filter(None, [label])), value)
            yield family
        yield _growths(supervisor.growths)


def routes(
    supervisor: Supervisor,
    clock: Clock,
    tls: Iterable[FollowedTls[Any]] = (),
    *,
    alone: bool,
    messages: Mapping[str, int] | None = None,
) -> Mapping[str, Route]:
    """The listener's routes. ``alone``: the sidecar form, where ``/explain`` and ``/database`` need no name. ``tls``:
    the files that the metrics report on. ``messages``: see ``AgentCollector``.
    """
    registry = registry_of(supervisor, clock, messages)
    watch_tls(registry, tls)
    return {
        "/metrics": lambda _: HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4),
        # Alive as long as the event loop turns. An API server that is down must not restart the agent.
        "/healthz": lambda _: HttpResponse(b"ok\n"),
        "/readyz": lambda _: _ready(supervisor),
        "/explain": lambda rest: _explain(supervisor, clock, rest, alone=alone),
        "/database": lambda rest: _database(supervisor, rest, alone=alone),
    }


def explain_guard(access: ExplainAccess, alone: Assignment | None) -> Guard:
    """Everyone may read metrics and probes; ``access`` decides on explanations. ``alone``: the sidecar's VM."""

    async def guard(route: str, rest: str, caller: Caller) -> HttpResponse | None:
        if route not in _EXPLANATIONS:
            return None
        # Access is granted by namespace and kind: by the first part of the path, and the beginning of the second.
        namespace, _, name = rest.removeprefix("/").partition("/")
        vm = ObjectName(namespace, name) if alone is None else alone.vm
        denial = await access.denial(caller, Scope(vm.namespace, of_pods=pod_of(vm) is not None))
        return None if denial is None else _json({"error": denial.error}, denial.status)

    return guard


def registry_of(supervisor: Supervisor, clock: Clock, messages: Mapping[str, int] | None = None) -> CollectorRegistry:
    """All metrics of the process."""
    # With ``auto_describe`` a collector is collected once while it is registered.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AgentCollector(supervisor, clock, messages))
    describe_process(registry, "autoscaler-agent")
    return registry


def _ready(supervisor: Supervisor) -> HttpResponse:
    unseen = [str(assignment.vm) for assignment, runner in supervisor.runners.items() if runner.state.vm.seen is None]
    # Before the first list, no runner is unseen either: an empty set would look ready.
    if not supervisor.is_listed:
        return HttpResponse(texts.VMS_UNKNOWN.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    if unseen:
        unread = texts.VMS_UNREAD.format(vms=" ".join(unseen[:10]))
        return HttpResponse(unread.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    return HttpResponse(b"ok\n")


def _explain(supervisor: Supervisor, clock: Clock, rest: str, *, alone: bool) -> HttpResponse:
    if not rest.removeprefix("/") and not alone:
        # Without a name, the per-node form lists what can be asked for.
        unreadable = {str(pod): reason for pod, reason in sorted(supervisor.source.unreadable.items())}
        return _json({"vms": sorted(_by_vm(supervisor)), "unreadable": unreadable})
    runner = _chosen(supervisor, rest, alone=alone)
    if isinstance(runner, HttpResponse):
        return runner
    return _json(explain(runner.state, str(runner.assignment.vm), clock.now()))


async def _database(supervisor: Supervisor, rest: str, *, alone: bool) -> HttpResponse:
    runner = _chosen(supervisor, rest, alone=alone)
    if isinstance(runner, HttpResponse):
        return runner
    try:
        return _json(await runner.look_at_database())
    except PortError as error:
        return _json({"error": error.reason}, HTTPStatus.SERVICE_UNAVAILABLE)


def _chosen(supervisor: Supervisor, rest: str, *, alone: bool) -> Runner | HttpResponse:
    """The runner of the VM that the path names, or of the only one; a 404 response if there is none."""
    wanted, runners = rest.removeprefix("/"), _by_vm(supervisor)
    # A sidecar may be asked by the name of its VM as well.
    runner = next(iter(runners.values()), None) if alone and not wanted else runners.get(wanted)
    if runner is None:
        return _json({"error": texts.NO_SUCH_VM.format(vm=wanted or "none yet")}, HTTPStatus.NOT_FOUND)
    return runner


def _by_vm(supervisor: Supervisor) -> dict[str, Runner]:
    return {str(assignment.vm): runner for assignment, runner in supervisor.runners.items()}


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(value), status, "application/json")


Values = Mapping[str, float | None]
"""One VM's values by the metric's own label, which is empty if it has none; a value of None is left out."""

OfVms = tuple[CounterMetricFamily | GaugeMetricFamily, Callable[[Runner], Values]]


def _of_vms(now: Instant) -> Iterator[OfVms]:
    """The metrics that each VM has, empty, with what fills them."""
    yield _gauge("cpu_cores", "CPU of a VM, by what it is.", "kind"), _cpu
    yield _gauge("memory_bytes", "Memory of a VM.", "kind"), _memory
    text = "1 while less is permitted than asked for."
    yield _gauge("denied", text), lambda runner: {"": runner.state.scheduler.denial is not None}
    yield _gauge("migrating", "1 while nothing may be changed."), lambda runner: {"": runner.state.scheduler.migrate}
    yield (
        _counter("events", "What happened to a VM's agent.", "kind"),
        lambda runner: dict(sorted(runner.tally.items())),
    )
    yield _counter("rejected_permits", "Permits not believed."), lambda runner: {"": runner.state.scheduler.rejected}
    text = "Processes that a guest's kernel killed for lack of memory."
    yield _counter("guest_oom_kills", text), lambda runner: {"": runner.state.guest.kills.total}
    text = "Loads that a guest's monitor reported and its VM grew for, by what looks then showed."
    yield _counter("monitor_reports", text, "outcome"), _reports
    text = "Since a VM needs more than it has, 0 if it does not."
    yield _gauge("growth_waiting_seconds", text), lambda runner: {"": _waiting(runner, now)}
    text = "1 while the kubelet has not carried out a pod's resize, by its verdict."
    yield _gauge("resize_objection", text, "verdict"), _objection
    text = "1 while something is wrong, by what it is about."
    yield _gauge("trouble", text, "about"), lambda runner: _failing(runner, now)


def _gauge(name: str, text: str, *label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"autoscale_agent_{name}", text, labels=(*VM_LABELS, *label))


def _counter(name: str, text: str, *label: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"autoscale_agent_{name}", text, labels=(*VM_LABELS, *label))


def _sizes(runner: Runner) -> Iterator[tuple[str, Resources]]:
    state, vm = runner.state, runner.state.vm.seen
    if vm is not None:
        yield from (("actual", vm.actual), ("ordered", vm.use), ("least", vm.bounds.min), ("most", vm.bounds.max))
    for kind, amounts in (("permit", state.scheduler.permit), ("goal", state.guest.goal.need)):
        if amounts is not None:
            yield kind, amounts


def _cpu(runner: Runner) -> Values:
    return {**{kind: size.cpu.as_cores for kind, size in _sizes(runner)}, "used": runner.state.guest.rates.used}


def _memory(runner: Runner) -> Values:
    seen = runner.state.guest.seen
    used = None if seen is None else seen.sample.mem_used
    sizes = {kind: size.mem.value for kind, size in _sizes(runner)}
    return {**sizes, "used": None if used is None else used.value}


def _reports(runner: Runner) -> Values:
    return {"right": runner.state.monitor.right_alarms, "false": runner.state.monitor.false_alarms}


def _waiting(runner: Runner, now: Instant) -> float:
    # The oldest wish comes first.
    return now - runner.wishes[0].since if runner.wishes else 0.0


def _objection(runner: Runner) -> Values:
    vm = runner.state.vm.seen
    return {} if vm is None or vm.objection is None else {vm.objection.verdict: 1.0}


def _failing(runner: Runner, now: Instant) -> Values:
    state = runner.state
    is_paused = any(pause.holds(now) for pause in state.vm.pauses.known)
    failures = {
        "scheduler": state.scheduler.failure,
        "resizing": state.vm.failure,
        "object": state.vm.lost,
        "guest": state.guest.failure,
        "settings": state.settings_failure,
        "monitor": state.monitor_failure,
    }
    troubles = {about: failure is not None for about, failure in failures.items()}
    return troubles | {"resizing": troubles["resizing"] or is_paused}


def _growths(growths: GrowthTimes) -> Metric:
    text = "From a VM's need to its permit, and to its size."
    family = HistogramMetricFamily("autoscale_agent_growth_seconds", text, labels=("stage",))
    for stage, buckets, total in growths.histograms():
        family.add_metric((stage,), buckets, total)
    return family
