"""Prometheus metrics, probes, ``/explain`` and ``/database`` of one agent process.

Metrics are computed from the runners' state on each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent import texts
from agent.assignments import Assignment
from agent.core.desired_size import is_current
from agent.core.explain import explain
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
from protocol.runtime.serving.shared_page import SharedPage
from protocol.runtime.tls_files import FollowedTls
from protocol.runtime.tls_metrics import watch_tls
from protocol.units import Instant, Resources

_EXPLANATIONS = frozenset({"/explain", "/database"})
VM_LABELS = ("namespace", "vm")


class AgentCollector(Collector):
    """The state of every runner as metrics. ``messages``: counts of messages to the scheduler, None without batches."""

    def __init__(self, supervisor: Supervisor, clock: Clock, messages: Mapping[str, int] | None = None) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._messages = messages

    def collect(self) -> Iterator[Metric]:
        """All metrics of the VMs, as of now."""
        supervisor, runners, now = self._supervisor, list(self._supervisor.runners.values()), self._clock.now()
        yield GaugeMetricFamily("autoscale_agent_vms", "VMs that this agent scales.", len(runners))
        text = "Crashes of a VM's agent because of a bug."
        yield CounterMetricFamily("autoscale_agent_crashes", text, supervisor.crashes)
        text, unreadable = "Pods of this node that cannot be decoded.", len(supervisor.source.unreadable)
        yield GaugeMetricFamily("autoscale_agent_unreadable_pods", text, unreadable)
        if self._messages is not None:
            text = "Messages to the scheduler, for one VM alone or for many together."
            sent = CounterMetricFamily("autoscale_agent_scheduler_messages", text, labels=("form",))
            for form, count in self._messages.items():
                sent.add_metric((form,), count)
            yield sent
        for family, values in _vm_metrics(now):
            for runner in runners:
                vm = runner.assignment.vm
                for label, value in values(runner).items():
                    if value is not None:
                        family.add_metric((vm.namespace, vm.name, *filter(None, [label])), value)
            yield family


def routes(
    supervisor: Supervisor,
    clock: Clock,
    tls: Iterable[FollowedTls[Any]] = (),
    *,
    alone: bool,
    messages: Mapping[str, int] | None = None,
) -> Mapping[str, Route]:
    """The routes of the HTTP server. For a sidecar (``alone``), ``/explain`` and ``/database`` need no name.

    ``tls``: certificates whose metrics to export. ``messages``: see ``AgentCollector``.
    """
    registry = registry_of(supervisor, clock, messages)
    watch_tls(registry, tls)

    async def page() -> bytes:
        return generate_latest(registry)

    # 110 VMs take 30 ms, in which the agent can do nothing else, and anyone may ask.
    shared = SharedPage(page, clock)

    async def metrics(_: str) -> HttpResponse:
        return HttpResponse(await shared.read(), content_type=CONTENT_TYPE_PLAIN_0_0_4)

    return {
        "/metrics": metrics,
        # Alive as long as the event loop runs: an API server outage must not restart the agent.
        "/healthz": lambda _: HttpResponse(b"ok\n"),
        "/readyz": lambda _: _ready(supervisor),
        "/explain": lambda rest: _explain(supervisor, clock, rest, alone=alone),
        "/database": lambda rest: _database(supervisor, rest, alone=alone),
    }


def explain_guard(access: ExplainAccess, alone: Assignment | None) -> Guard:
    """A guard that authorizes ``/explain`` and ``/database`` by ``access``. ``alone``: the sidecar's VM."""

    async def guard(route: str, rest: str, caller: Caller) -> HttpResponse | None:
        if route not in _EXPLANATIONS:
            return None
        # Rights depend on namespace and kind, and the path names both.
        namespace, _, name = rest.removeprefix("/").partition("/")
        vm = ObjectName(namespace, name) if alone is None else alone.vm
        denial = await access.denial(caller, Scope(vm.namespace, of_pods=pod_of(vm) is not None))
        return None if denial is None else _json({"error": denial.error}, denial.status)

    return guard


def registry_of(supervisor: Supervisor, clock: Clock, messages: Mapping[str, int] | None = None) -> CollectorRegistry:
    """All metrics of the process."""
    # ``auto_describe`` would collect the metrics at registration.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AgentCollector(supervisor, clock, messages))
    registry.register(supervisor.growths)
    describe_process(registry, "autoscaler-agent")
    return registry


def _ready(supervisor: Supervisor) -> HttpResponse:
    runners = supervisor.runners.items()
    unread = [str(assignment.vm) for assignment, runner in runners if runner.state.vm.observed is None]
    # Before the first list the set is empty, which must not count as ready.
    if not supervisor.is_listed:
        return HttpResponse(texts.VMS_UNKNOWN.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    if unread:
        waiting = texts.VMS_UNREAD.format(vms=" ".join(unread[:10]))
        return HttpResponse(waiting.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    return HttpResponse(b"ok\n")


def _explain(supervisor: Supervisor, clock: Clock, rest: str, *, alone: bool) -> HttpResponse:
    if not rest.removeprefix("/") and not alone:
        # Without a name, a node's agent lists its VMs.
        unreadable = {str(pod): reason for pod, reason in sorted(supervisor.source.unreadable.items())}
        return _json({"vms": sorted(_by_vm(supervisor)), "unreadable": unreadable})
    runner = _runner_at(supervisor, rest, alone=alone)
    if isinstance(runner, HttpResponse):
        return runner
    return _json(explain(runner.state, str(runner.assignment.vm), clock.now()))


async def _database(supervisor: Supervisor, rest: str, *, alone: bool) -> HttpResponse:
    runner = _runner_at(supervisor, rest, alone=alone)
    if isinstance(runner, HttpResponse):
        return runner
    try:
        return _json(await runner.fetch_database())
    except PortError as error:
        return _json({"error": error.reason}, HTTPStatus.SERVICE_UNAVAILABLE)


def _runner_at(supervisor: Supervisor, rest: str, *, alone: bool) -> Runner | HttpResponse:
    """The runner of the VM in the path, or the only runner; a 404 response if there is none."""
    name, runners = rest.removeprefix("/"), _by_vm(supervisor)
    # A sidecar also accepts the name of its VM.
    runner = next(iter(runners.values()), None) if alone and not name else runners.get(name)
    if runner is None:
        return _json({"error": texts.NO_SUCH_VM.format(vm=name or "none yet")}, HTTPStatus.NOT_FOUND)
    return runner


def _by_vm(supervisor: Supervisor) -> dict[str, Runner]:
    return {str(assignment.vm): runner for assignment, runner in supervisor.runners.items()}


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(value), status, "application/json")


Values = Mapping[str, float | None]
"""One VM's values by the metric's own label (empty if it has none). A value of None is not exported."""

VmMetric = tuple[CounterMetricFamily | GaugeMetricFamily, Callable[[Runner], Values]]


def _vm_metrics(now: Instant) -> Iterator[VmMetric]:
    """The metric families of VMs, each with the function that computes a VM's values."""
    yield _gauge("cpu_cores", "CPU of a VM, by kind.", "kind"), lambda runner: _cpu(runner, now)
    yield _gauge("memory_bytes", "Memory of a VM, by kind.", "kind"), lambda runner: _memory(runner, now)
    text = "1 while less is granted than requested."
    yield _gauge("denied", text), lambda runner: {"": runner.state.scheduler.denial is not None}
    yield (
        _gauge("migrating", "1 while the VM must not be resized."),
        lambda runner: {"": runner.state.scheduler.migrate},
    )
    yield (
        _counter("events", "Events of a VM's agent.", "kind"),
        lambda runner: dict(sorted(runner.log.tally.items())),
    )
    yield (
        _counter("rejected_permits", "Permits that the agent rejected."),
        lambda runner: {"": runner.state.scheduler.rejected},
    )
    text = "Processes that a guest's kernel killed because memory ran out."
    yield _counter("guest_oom_kills", text), lambda runner: {"": runner.state.guest.kills.total}
    text = "Load reports from a guest's monitor that made its VM grow, by whether later scrapes confirmed them."
    yield _counter("monitor_reports", text, "outcome"), _reports
    text = "1 while a VM is asleep or waking."
    yield _gauge("asleep", text), lambda runner: {"": runner.state.sleeps}
    text = "Seconds for which a VM has been waking, until its guest runs; 0 if it is not."
    yield _gauge("waking_seconds", text), lambda runner: {"": _waking(runner, now)}
    text = "Seconds for which a VM has been waking, without the time to read its saved memory; 0 if it is not."
    yield _gauge("wake_overdue_seconds", text), lambda runner: {"": _overdue(runner, now)}
    text = "1 if a VM was ordered to sleep again without client activity since its last wake."
    yield _gauge("woken_for_nothing", text), lambda runner: {"": _is_unused(runner)}
    yield _counter("wakes", "Wakes of a VM, by source.", "by"), lambda runner: dict(runner.state.sleep.wakes)
    text = "Time since a client of a guest's database last did anything, as the guest reports."
    yield _gauge("database_quiet_seconds", text), lambda runner: {"": _quiet(runner)}
    text = "How long a VM has needed more than it has; otherwise 0."
    yield _gauge("growth_waiting_seconds", text), lambda runner: {"": _waiting(runner, now)}
    text = "1 while the kubelet has not carried out a pod's resize, by its verdict."
    yield _gauge("resize_objection", text, "verdict"), _objection
    text = "1 while there is a problem, by the part it concerns."
    yield _gauge("trouble", text, "about"), lambda runner: _problems(runner, now)


def _gauge(name: str, text: str, *label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"autoscale_agent_{name}", text, labels=(*VM_LABELS, *label))


def _counter(name: str, text: str, *label: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"autoscale_agent_{name}", text, labels=(*VM_LABELS, *label))


def _sizes(runner: Runner, now: Instant) -> Iterator[tuple[str, Resources]]:
    state, vm = runner.state, runner.state.vm.observed
    # The last values of a guest that hangs would be billed as its use.
    need = state.guest.goal.need if is_current(state, now) else None
    if vm is not None:
        yield from (("actual", vm.actual), ("ordered", vm.use), ("least", vm.bounds.min), ("most", vm.bounds.max))
    for kind, amounts in (("permit", state.scheduler.permit), ("goal", need)):
        if amounts is not None:
            yield kind, amounts


def _cpu(runner: Runner, now: Instant) -> Values:
    used = runner.state.guest.rates.used if is_current(runner.state, now) else None
    return {**{kind: size.cpu.as_cores for kind, size in _sizes(runner, now)}, "used": used}


def _memory(runner: Runner, now: Instant) -> Values:
    observed = runner.state.guest.observed
    used = observed.sample.mem_used if observed is not None and is_current(runner.state, now) else None
    sizes = {kind: size.mem.value for kind, size in _sizes(runner, now)}
    return {**sizes, "used": None if used is None else used.value}


def _waking(runner: Runner, now: Instant) -> float:
    since = runner.state.sleep.waking_from
    return 0.0 if since is None else now - since


def _overdue(runner: Runner, now: Instant) -> float:
    vm = runner.state.vm.observed
    return 0.0 if vm is None else runner.state.sleep.wake_overdue(vm.sleep, now)


def _is_unused(runner: Runner) -> bool:
    wake = runner.state.sleep.wake
    return wake is not None and wake.is_unused


def _quiet(runner: Runner) -> float | None:
    observed = runner.state.guest.observed
    return None if observed is None else observed.sample.quiet


def _reports(runner: Runner) -> Values:
    return {"right": runner.state.monitor.right_alarms, "false": runner.state.monitor.false_alarms}


def _waiting(runner: Runner, now: Instant) -> float:
    # The oldest growth comes first.
    return now - runner.pending[0].since if runner.pending else 0.0


def _objection(runner: Runner) -> Values:
    vm = runner.state.vm.observed
    return {} if vm is None or vm.objection is None else {vm.objection.verdict: 1.0}


def _problems(runner: Runner, now: Instant) -> Values:
    state = runner.state
    is_paused = any(pause.is_active(now) for pause in state.vm.pauses.set_pauses)
    failures = {
        "scheduler": state.scheduler.failure,
        "resizing": state.vm.failure,
        "object": state.vm.lost,
        "guest": state.guest.failure,
        "settings": state.settings_failure,
        "monitor": state.monitor_failure,
        "sleep": state.sleep_failure,
    }
    troubles = {about: failure is not None for about, failure in failures.items()}
    return troubles | {"resizing": troubles["resizing"] or is_paused}
