"""Prometheus metrics, probes, ``/explain`` and ``/database`` of one agent process.

Numbers are read from the runners on each scrape; a VM costs no objects in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agent import texts
from agent.assignments import Assignment
from agent.core.explain import explain
from agent.core.monitor.monitor_side import MonitorSide
from agent.ports import PortError
from agent.runner import Runner
from agent.supervisor import Supervisor
from protocol.messages import ObjectName
from protocol.runtime.build_info import describe_process
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import Caller, ExplainAccess
from protocol.runtime.explaining.probe_server import Guard, Route
from protocol.runtime.serving.http_requests import HttpResponse
from protocol.runtime.tls_files import FollowedTls
from protocol.runtime.tls_metrics import watch_tls
from protocol.units import Bytes, Instant, Resources

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
        runners = list(self._supervisor.runners.values())
        yield _gauge("autoscale_agent_vms", "VMs that this agent looks after.", len(runners))
        crashes = CounterMetricFamily("autoscale_agent_crashes", "Agents of a VM that ended by a bug.")
        crashes.add_metric((), self._supervisor.crashes)
        yield crashes
        unreadable = len(self._supervisor.source.unreadable)
        yield _gauge("autoscale_agent_unreadable_pods", "Pods of this node that cannot be read.", unreadable)
        if self._messages is not None:
            sent = CounterMetricFamily(
                "autoscale_agent_scheduler_messages",
                "Messages to the scheduler, for one VM alone or for many together.",
                labels=("form",),
            )
            for form, count in self._messages.items():
                sent.add_metric((form,), count)
            yield sent
        yield from _sizes(runners)
        yield from _counts(runners)
        yield _growths(self._supervisor)
        yield from _waits(runners, self._clock.now())


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
        # Access is granted by namespace: the first part of the path.
        named = rest.removeprefix("/").partition("/")[0]
        denial = await access.denial(caller, named if alone is None else alone.vm.namespace)
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


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    family.add_metric((), value)
    return family


def _sizes(runners: Iterable[Runner]) -> Iterator[Metric]:
    cpu = GaugeMetricFamily("autoscale_agent_cpu_cores", "CPU of a VM, by what it is.", labels=(*VM_LABELS, "kind"))
    mem = GaugeMetricFamily("autoscale_agent_memory_bytes", "Memory of a VM.", labels=(*VM_LABELS, "kind"))
    denied = GaugeMetricFamily("autoscale_agent_denied", "1 while less is permitted than asked for.", labels=VM_LABELS)
    moving = GaugeMetricFamily("autoscale_agent_migrating", "1 while nothing may be changed.", labels=VM_LABELS)
    for runner in runners:
        name, side = _name(runner.assignment.vm), runner.state.scheduler
        for kind, amounts in _amounts(runner):
            cpu.add_metric((*name, kind), amounts.cpu.as_cores)
            mem.add_metric((*name, kind), amounts.mem.value)
        busy, used = _used(runner)
        if busy is not None:
            cpu.add_metric((*name, "used"), busy)
        if used is not None:
            mem.add_metric((*name, "used"), used.value)
        denied.add_metric(name, float(side.denial is not None))
        moving.add_metric(name, float(side.migrate))
    yield from (cpu, mem, denied, moving)


def _amounts(runner: Runner) -> Iterator[tuple[str, Resources]]:
    state, vm = runner.state, runner.state.vm.seen
    if vm is not None:
        yield "actual", vm.actual
        yield "ordered", vm.use
        yield "least", vm.bounds.min
        yield "most", vm.bounds.max
    for kind, amounts in (("permit", state.scheduler.permit), ("goal", state.guest.goal.need)):
        if amounts is not None:
            yield kind, amounts


def _used(runner: Runner) -> tuple[float | None, Bytes | None]:
    """The cores and the memory that the guest uses, as far as its last sample says."""
    guest = runner.state.guest
    return guest.rates.used, None if guest.seen is None else guest.seen.sample.mem_used


def _counts(runners: Iterable[Runner]) -> Iterator[Metric]:
    events = CounterMetricFamily(
        "autoscale_agent_events", "What happened to a VM's agent.", labels=(*VM_LABELS, "kind")
    )
    rejected = CounterMetricFamily("autoscale_agent_rejected_permits", "Permits not believed.", labels=VM_LABELS)
    kills = CounterMetricFamily(
        "autoscale_agent_guest_oom_kills",
        "Processes that a guest's kernel killed for lack of memory.",
        labels=VM_LABELS,
    )
    reports = CounterMetricFamily(
        "autoscale_agent_monitor_reports",
        "Loads that a guest's monitor reported and its VM grew for, by what looks then showed.",
        labels=(*VM_LABELS, "outcome"),
    )
    for runner in runners:
        name = _name(runner.assignment.vm)
        for kind, count in sorted(runner.tally.items()):
            events.add_metric((*name, kind), count)
        rejected.add_metric(name, runner.state.scheduler.rejected)
        kills.add_metric(name, runner.state.guest.kills.total)
        for outcome, count in _reports(runner.state.monitor):
            reports.add_metric((*name, outcome), count)
    yield from (events, rejected, kills, reports)


def _reports(side: MonitorSide) -> Iterator[tuple[str, int]]:
    yield "right", side.right_alarms
    yield "false", side.false_alarms


def _growths(supervisor: Supervisor) -> Metric:
    family = HistogramMetricFamily(
        "autoscale_agent_growth_seconds", "From a VM's need to its permit, and to its size.", labels=("stage",)
    )
    for stage, buckets, total in supervisor.growths().histograms():
        family.add_metric((stage,), buckets, total)
    return family


def _waits(runners: Iterable[Runner], now: Instant) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "autoscale_agent_growth_waiting_seconds",
        "Since a VM needs more than it has, 0 if it does not.",
        labels=VM_LABELS,
    )
    trouble = GaugeMetricFamily(
        "autoscale_agent_trouble", "1 while something is wrong, by what it is about.", labels=(*VM_LABELS, "about")
    )
    for runner in runners:
        name, state = _name(runner.assignment.vm), runner.state
        # The oldest wish comes first.
        waiting.add_metric(name, now - runner.wishes[0].since if runner.wishes else 0.0)
        about = {
            "scheduler": state.scheduler.failure,
            "resizing": state.vm.failure,
            "object": state.vm.lost,
            "guest": state.guest.failure,
            "settings": state.settings_failure,
            "monitor": state.monitor_failure,
        }
        for what, failure in about.items():
            trouble.add_metric((*name, what), float(failure is not None))
    yield from (waiting, trouble)


def _name(vm: ObjectName) -> tuple[str, str]:
    return vm.namespace, vm.name
